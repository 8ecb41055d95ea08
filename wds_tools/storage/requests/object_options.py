"""Storage options of s3fs, gcsfs and adlfs, and what they read from the environment, as settings of obstore."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wds_tools.errors import OptionError, StoreError

SCHEMES = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "az"),
}
_ALLOWED = {
    "s3": {"key", "secret", "token", "anon", "endpoint_url", "client_kwargs", "profile", "requester_pays"},
    "gs": {"token", "anon", "project", "endpoint_url", "requester_pays"},
    "az": {"account_name", "account_key", "sas_token", "connection_string", "anon", "tenant_id", "client_id"}
    | {"client_secret", "account_host"},
}
_S3_CLIENT = {"endpoint_url", "region_name", "verify"}
_WITHOUT_EFFECT = {  # of fsspec and its file systems, about buffers, listings, uploads and asyncio
    *("access", "asynchronous", "batch_size", "blocksize", "block_size", "cache_regions", "cache_timeout"),
    *("check_connection", "consistency", "default_block_size", "default_cache_type", "default_fill_cache"),
    *("default_location", "fixed_upload_size", "listings_expiry_time", "loop", "max_concurrency", "max_paths"),
    *("secure_serialize", "skip_instance_cache", "use_listings_cache", "use_ssl"),
}
_ANONYMOUS = "anon"  # instead of a token of gcsfs
_CREDENTIAL_SECONDS = 300  # after which credentials are taken from botocore again, which may have renewed them


class UnsupportedOptionError(OptionError):
    """There are options that only the file system of fsspec understands."""


@dataclass(slots=True)
class ObjectStorage:
    """How obstore opens a bucket.

    Attributes:
        kind: s3, gs or az.
        bucket: Name of the bucket or container.
        prefix: Path of the folder in the bucket.
        config: Settings of the store.
        client: Settings of its HTTP client.
        credentials: Function that returns credentials, or None for the credentials in ``config`` or of obstore.
        host: Host of the endpoint, for messages.
        found_credentials: Whether there are credentials, or none are needed, judged without a request.
    """

    kind: str
    bucket: str
    prefix: str
    config: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    credentials: Callable[[], Any] | None = None
    host: str = ""
    found_credentials: bool = True


def object_storage(url: str, options: Mapping[str, Any]) -> ObjectStorage:
    """Return how obstore opens a URL.

    Raises:
        UnsupportedOptionError: An option is unknown here; the file system of fsspec may know it.
        OptionError: The URL or an option is invalid.
        StoreError: Credentials cannot be read without a package that is not installed.
    """
    parts = urlsplit(url)
    kind = SCHEMES[parts.scheme.lower()]
    bucket = parts.netloc.rpartition("@")[0] if kind == "az" and "@" in parts.netloc else parts.netloc
    if not bucket or "@" in bucket:
        raise OptionError(f"{parts.scheme}:// needs a bucket, such as {parts.scheme}://bucket/train")
    options = {name: value for name, value in options.items() if value is not None and name not in _WITHOUT_EFFECT}
    _check_names(options, _ALLOWED[kind], kind)
    storage = ObjectStorage(kind, bucket, parts.path.strip("/"))
    {"s3": _s3, "gs": _gs, "az": _az}[kind](storage, options, parts.netloc.rpartition("@")[2])
    endpoint = storage.config.get("endpoint") or storage.config.get("base_url") or ""
    storage.host = urlsplit(endpoint).netloc or storage.host
    storage.client["allow_http"] = endpoint.startswith("http://")
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if "root_certificate" not in storage.client and bundle and Path(bundle).is_file():
        storage.client["root_certificate"] = Path(bundle).read_text(encoding="utf-8")
    return storage


def _check_names(options: Mapping[str, Any], allowed: set[str], what: str) -> None:
    unknown = ", ".join(sorted(map(str, set(options) - allowed)))
    if unknown:
        raise UnsupportedOptionError(
            f"unknown storage option for {what}://: {unknown}; allowed are {', '.join(sorted(allowed))}"
        )


def _s3(storage: ObjectStorage, options: dict[str, Any], _netloc: str) -> None:
    client = dict(options.get("client_kwargs") or {})
    _check_names(client, _S3_CLIENT, "client_kwargs of s3")
    session = _botocore_session(options.get("profile"))
    if options.get("anon"):
        storage.config["skip_signature"] = True
    elif options.get("key") and options.get("secret"):
        storage.config.update(access_key_id=options["key"], secret_access_key=options["secret"])
        if options.get("token"):
            storage.config["session_token"] = options["token"]
    else:
        _s3_credentials(storage, session, options.get("profile"))
    profile = session.get_scoped_config() if session else {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    if not endpoint and os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        endpoint = endpoint or profile.get("endpoint_url")
    region = client.get("region_name") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    region = region or profile.get("region") or "us-east-1"
    storage.config["region"] = region
    storage.host = f"s3.{region}.amazonaws.com"
    if endpoint:
        storage.config["endpoint"] = endpoint.rstrip("/")
        storage.config["virtual_hosted_style_request"] = False
    if options.get("requester_pays"):
        storage.config["request_payer"] = True
    verify = client.get("verify", os.environ.get("AWS_CA_BUNDLE"))
    if verify is False:
        storage.client["allow_invalid_certificates"] = True
    elif isinstance(verify, str) and Path(verify).is_file():
        storage.client["root_certificate"] = Path(verify).read_text(encoding="utf-8")


def _botocore_session(profile: str | None) -> Any:
    """Return a session of botocore, which knows profiles, SSO and credential processes; None without botocore."""
    try:
        import botocore.exceptions  # noqa: PLC0415 - installed with s3fs, and needed for s3:// only
        import botocore.session  # noqa: PLC0415
    except ImportError:
        return None
    try:
        session = botocore.session.Session(profile=profile)
        session.get_scoped_config()
    except botocore.exceptions.ProfileNotFound as error:
        raise OptionError(f"{error}; check AWS_PROFILE and the storage option 'profile'") from None
    return session


def _s3_credentials(storage: ObjectStorage, session: Any, profile: str | None) -> None:
    """Take credentials from botocore; without it, obstore finds them in the environment or on the machine."""
    if session:
        credentials = session.get_credentials()
        if credentials is None:
            raise StoreError(
                f"no credentials were found for s3://{storage.bucket}: configure them as for the AWS command line, "
                "or set --storage-option anon=true (storage_options={'anon': True}) for a public bucket"
            )

        def provide() -> dict[str, Any]:
            frozen = credentials.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(UTC) + timedelta(seconds=_CREDENTIAL_SECONDS),
            }

        storage.credentials = provide
        return
    storage.found_credentials = bool(os.environ.get("AWS_ACCESS_KEY_ID"))
    files = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    if files or (not storage.found_credentials and (Path.home() / ".aws" / "credentials").exists()):
        raise StoreError(
            f"s3://{storage.bucket}: profiles and credential files are read by botocore, which is not installed; "
            "try `pip install botocore`"
        )


def _gs(storage: ObjectStorage, options: dict[str, Any], _netloc: str) -> None:
    storage.host = "storage.googleapis.com"
    token = options.get("token")
    endpoint = options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST")
    if endpoint:
        storage.config["base_url"] = endpoint.rstrip("/") if "://" in endpoint else f"http://{endpoint.rstrip('/')}"
    if options.get("anon") or token == _ANONYMOUS or (endpoint and token is None):
        storage.config["skip_signature"] = True
    elif isinstance(token, Mapping) and token.get("type") == "service_account":
        storage.config["service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str) and token not in {"browser", "cache", "cloud", "google_default"}:
        if Path(token).is_file():
            storage.config["application_credentials"] = token
        else:
            storage.config["bearer_token"] = token
    elif token is not None and token not in ("cloud", "google_default"):
        raise UnsupportedOptionError(
            "storage option token: allowed are anon, cloud, google_default, a file, an access token, "
            "or a dict of type service_account"
        )
    else:
        storage.found_credentials = any(os.environ.get(f"GOOGLE_{name}") for name in _GOOGLE) or _GOOGLE_FILE.exists()
    if options.get("requester_pays"):
        raise UnsupportedOptionError("storage option requester_pays is not supported for gs://")


_GOOGLE = ("APPLICATION_CREDENTIALS", "SERVICE_ACCOUNT", "SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT_KEY", "BEARER_TOKEN")
_GOOGLE_FILE = Path.home() / ".config" / "gcloud" / "application_default_credentials.json"


def _az(storage: ObjectStorage, options: dict[str, Any], netloc: str) -> None:
    texts = dict(options)
    connection = texts.pop("connection_string", None) or os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    given = dict(re.findall(r"([A-Za-z]+)=([^;]+)", connection))
    if given.get("UseDevelopmentStorage", "").lower() == "true":
        storage.config["use_emulator"] = True
    host = netloc if "." in netloc else ""  # of abfs://container@account.dfs.core.windows.net/folder
    account = texts.get("account_name") or given.get("AccountName") or host.partition(".")[0]
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if account:
        storage.config["account_name"] = account
    storage.host = f"{account}.blob.core.windows.net"
    suffix = given.get("EndpointSuffix", "core.windows.net")
    if given.get("BlobEndpoint"):
        storage.config["endpoint"] = given["BlobEndpoint"].rstrip("/")
    elif texts.get("account_host"):
        storage.config["endpoint"] = f"https://{texts['account_host']}"
    elif suffix != "core.windows.net":
        storage.config["endpoint"] = f"https://{account}.blob.{suffix}"
    for name, value in (
        ("account_key", texts.get("account_key") or given.get("AccountKey")),
        ("sas_key", (texts.get("sas_token") or given.get("SharedAccessSignature") or "").lstrip("?")),
        *((name, texts.get(name)) for name in ("tenant_id", "client_id", "client_secret")),
    ):
        if value:
            storage.config[name] = value
    if texts.get("anon"):
        storage.config["skip_signature"] = True
    secrets = {"account_key", "sas_key", "client_secret", "skip_signature", "use_emulator"} & set(storage.config)
    storage.found_credentials = bool(secrets) or any(name.startswith("AZURE_STORAGE_") for name in os.environ)
