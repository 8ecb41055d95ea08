"""A client for Google Cloud Storage, Azure and S3 through obstore, which knows their signatures and credentials."""

from __future__ import annotations

import gc
import os
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from wds_tools.errors import OptionError, StoreError
from wds_tools.storage.requests.client_base import BaseClient, Part, Partial
from wds_tools.storage.requests.failures import (
    CHECK_NETWORK,
    Failure,
    clean_url,
    code_in,
    failure_of_status,
    without_secrets,
)
from wds_tools.storage.requests.object_options import ObjectStorage, object_storage
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage_options import secrets_of

_CHUNK_BYTES = 1 << 16  # fewer cost more calls, more cost memory: measured in docs/decisions/0017
_used_by: int | None = None  # process that obstore was used in: its threads do not survive a fork
_clients: weakref.WeakSet[ObjectClient] = weakref.WeakSet()  # of this process
_of_parents: list[ObjectClient] = []  # clients of the processes that this one was forked from
_KINDS = [  # text in the description of an error, retried, what happened, remedy
    (
        "NotPartial",
        False,
        "the server ignores range requests (HTTP 200 instead of 206)",
        "the store does not support range requests: check its settings, or download the dataset",
    ),
    ("UnexpectedRange", True, "", CHECK_NETWORK),
    ("NoContentRange", True, "the response has no valid Content-Range", CHECK_NETWORK),
    (
        "InvalidCertificate",
        False,
        "the certificate of the server is not trusted",
        "check it; SSL_CERT_FILE or REQUESTS_CA_BUNDLE names a file of trusted certificates",
    ),
    ("dns error", True, "the host name was not found", "check the endpoint, and the DNS of this machine"),
    (
        "redirect without LOCATION",
        False,
        "the bucket is in another region",
        "set AWS_REGION or storage_options={'client_kwargs': {'region_name': ...}}",
    ),
    ("kind: Timeout", True, "no response in time", CHECK_NETWORK),
    ("TimedOut", True, "no response in time", CHECK_NETWORK),
]


def is_usable() -> bool:
    """Return whether obstore is installed and works in this process.

    It hangs in a process that was forked from one that used it.
    """
    if _used_by not in (None, os.getpid()):
        return False
    try:
        import obstore  # noqa: F401, PLC0415 - an optional package
    except ImportError:
        return False
    return True


def _keep_clients_of_parent() -> None:
    """Never free an object of obstore that a parent created: it waits for locks that threads of the parent may hold."""
    if _used_by is not None:
        _of_parents.extend(_clients)
        gc.freeze()  # what the parent no longer uses, such as a client in a cycle, is not collected here either


os.register_at_fork(after_in_child=_keep_clients_of_parent)


class ObjectClient(BaseClient):
    """Requests to S3, Google Cloud Storage and Azure.

    obstore does not return ``Retry-After``, so only the jitter of the policy applies. A request that takes longer than
    `RetryPolicy.connect_seconds` and `RetryPolicy.idle_seconds` together is cut and continued by another one.

    Args:
        folder: The folder; its options are the options of s3fs, gcsfs or adlfs, see `object_options`.

    Raises:
        OptionError: The URL or an option is invalid.
        StoreError: There are no credentials, or obstore cannot be used in this process.
    """

    def __init__(self, folder: RemoteFolder) -> None:
        global _used_by  # noqa: PLW0603 - obstore's threads belong to the process
        storage = object_storage(folder.url, folder.options)
        super().__init__(folder, host=storage.host)
        self._secrets |= secrets_of(storage.config)
        if not is_usable():
            raise StoreError(
                f"{self.url}: obstore was used in process {_used_by} and hangs in processes forked from it: "
                "open the client in a process started by spawn"
            )
        _used_by = os.getpid()
        _clients.add(self)
        self._prefix = storage.prefix
        self._has_succeeded = storage.found_credentials  # whether credentials were found, or a request succeeded
        self._store = self._signer = _open(storage, folder.policy, clean_url(folder.url), self._secrets)
        if storage.kind == "s3" and storage.config.get("skip_signature"):
            # obstore builds URLs only with credentials. `S3Client` removes the signature that it makes from these.
            config = {name: value for name, value in storage.config.items() if name != "skip_signature"}
            unused = {"access_key_id": "none", "secret_access_key": "none"}
            self._signer = _open(
                replace(storage, config={**config, **unused}), folder.policy, clean_url(folder.url), self._secrets
            )

    def _fill(self, path: str, part: Part, total_bytes: int | None) -> None:
        tag = self._known_tag(path)
        options = {"range": (part.position, part.stop), **({"if_match": tag} if tag else {})}
        try:
            result = self._get(path, options)
            meta = result.meta
            self._check_version(path, meta["e_tag"], meta["size"], total_bytes)
            for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                part.add(chunk)
        except Exception as error:
            failure = self._failure_of(error)
            if failure.status == 412:
                self._raise_replaced(path, f"its ETag is no longer {tag}")
        else:
            return
        if failure.status == 416 and total_bytes is not None:
            self._raise_ended(path, part.position, total_bytes)
        raise failure

    def _read(self, path: str, most_bytes: int, partial: Partial) -> bytes:
        options: dict[str, Any] = {}
        if partial.data and partial.tag:
            options = {"range": {"offset": len(partial.data)}, "if_match": partial.tag}
        else:
            partial.data.clear()
        try:
            result = self._get(path, options)
            meta = result.meta
            if meta["size"] > most_bytes:
                self._raise_too_large(path, meta["size"], most_bytes)
            tag = meta["e_tag"] or ""
            partial.tag = "" if tag.startswith("W/") else tag
            for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                partial.data += chunk
        except Exception as error:
            failure = self._failure_of(error)
        else:
            return bytes(partial.data)
        if failure.status in {412, 416} and options:
            partial.data.clear()
            failure.retry = True
        raise failure

    @property
    def secrets(self) -> frozenset[str]:
        """Texts that no message may contain."""
        return self._secrets

    def signed_url(self, path: str) -> str:
        """Return a URL with which an S3 object can be read for an hour.

        Raises:
            Failure: There are no credentials.
        """
        import obstore  # noqa: PLC0415

        try:
            # An hour, so that the clock of this machine need not be right
            return str(obstore.sign(self._signer, "GET", self._path(path), timedelta(hours=1)))
        except Exception as error:
            failure = self._failure_of(error)
        raise failure

    def _list(self, folder: str) -> Sequence[str]:
        return self.list_once(folder)

    def list_once(self, folder: str) -> Sequence[str]:
        """Return the names of the objects in a folder, with one attempt.

        Raises:
            Failure: A request failed.
        """
        import obstore  # noqa: PLC0415

        try:
            listed = obstore.list_with_delimiter(self._store, self._path(folder.strip("/")) or None)
        except Exception as error:
            failure = self._failure_of(error)
        else:
            self._has_succeeded = True
            return [str(entry["path"]).rpartition("/")[2] for entry in listed["objects"]]
        raise failure

    def _get(self, path: str, options: dict[str, Any]) -> Any:
        import obstore  # noqa: PLC0415

        result = obstore.get(self._store, self._path(path), options=options)  # type: ignore[arg-type]
        self._has_succeeded = True
        return result

    def _path(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _failure_of(self, error: Exception) -> Failure:
        """Classify an error of obstore, which only has text; pass on others."""
        if not type(error).__module__.startswith("obstore") and not isinstance(error, FileNotFoundError):
            raise error
        text, _, details = str(error).partition("\n\nDebug source:")
        status = re.search(r"status code: (\d{3})[^:]*:?\s*(.*)", text, re.DOTALL)
        if status:
            code, message = code_in(status[2].encode(), {})
            return failure_of_status(int(status[1]), code=code, message=message, secrets=self._secrets)
        reason = without_secrets(text, self._secrets)
        if isinstance(error, FileNotFoundError):
            return Failure(reason, retry=False, missing=True)
        for mark, retry, what, remedy in _KINDS:
            if mark in details or mark in text:
                return Failure(what or reason, retry=retry, remedy=remedy)
        if not self._has_succeeded and re.search(r"(?i)credential|169\.254\.|metadata|oauth|token", text + details):
            # Before the first successful request, there are no credentials. Later, the failure may be temporary.
            remedy = (
                "configure credentials, or set --storage-option anon=true (storage_options={'anon': True}) for a "
                "public bucket"
            )
            return Failure(f"no credentials were found: {reason}", retry=False, remedy=remedy)
        return Failure(reason, remedy=CHECK_NETWORK)


def _open(storage: ObjectStorage, policy: RetryPolicy, url: str, secrets: frozenset[str]) -> Any:
    from obstore import store  # noqa: PLC0415

    client = {
        **storage.client,
        "connect_timeout": timedelta(seconds=policy.connect_seconds),
        "read_timeout": timedelta(seconds=policy.idle_seconds),
        "timeout": timedelta(seconds=policy.connect_seconds + policy.idle_seconds),
    }
    settings: dict[str, Any] = {"config": storage.config, "client_options": client, "retry_config": {"max_retries": 0}}
    if storage.credentials:
        settings["credential_provider"] = storage.credentials
    kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[storage.kind]
    try:
        return kind(storage.bucket, **settings)
    except Exception as error:  # obstore's own errors, ValueError, TypeError
        reason = without_secrets(str(error).partition("\n\nDebug source:")[0], secrets)
    raise OptionError(f"{url}: {reason}; check the URL and the storage options")
