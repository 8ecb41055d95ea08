"""Test program that runs one training framework in processes as torchrun starts them. Results are written to files.

    torchrun --nproc-per-node 2 framework_runs.py NAME FOLDER [briefly]

The folder contains the dataset ``shards/photos``. Rank r writes FOLDER/r.json. ``briefly`` resumes once in the middle
of an epoch, and leaves out the documented program and other ways to use the loaders.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
RANK = os.environ.get("RANK", "0")
BRIEFLY = sys.argv[3:] == ["briefly"]
OPTIONS = {"batch_size": 4, "shuffle": True, "num_workers": 1, "fields": ("image", "label", "__key__")}


def documented_code(heading, number=0):
    """Return a code block under a heading of docs/frameworks.md."""
    text = (ROOT / "docs" / "frameworks.md").read_text()
    section = re.search(rf"^## {heading}\n(.*?)(^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)[number]


def run_program(heading, **replaced):
    """Run the code under a heading of docs/frameworks.md with some options replaced; return its global names."""
    code, names = documented_code(heading), {"__name__": "__main__"}
    for name, value in replaced.items():
        code, count = re.subn(rf"\b{name}=[^,)]*", f"{name}={value}", code)
        assert count == 1, name
    exec(compile(code, "docs/frameworks.md", "exec"), names)
    return names


def make(**options):
    import wds_tools as wt

    return wt.make_loader("shards/photos", view=wt.RandomResizedCrop(32, flip=True), **{**OPTIONS, **options})


def linear(classes=8):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, classes))


def lightning():
    """Run the documented program, the example from checkpoints of a full run, and other ways to use the loaders."""
    import warnings

    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities import CombinedLoader
    from torch.utils.data import DataLoader

    import wds_tools as wt

    class Recorder(lightning.LightningModule):
        def __init__(self, *, reweights):
            super().__init__()
            self.model, self.keys, self.reweights = linear(), [], reweights

        def training_step(self, batch, _):
            batches = batch if isinstance(batch, dict) else {"only": batch}
            self.keys.append([self.current_epoch, {name: list(one.key) for name, one in batches.items()}])
            if self.reweights and self.global_step == 2:
                self.trainer.train_dataloader.reweight(classes={0: 3}, where={"label == 1": 0})
            return sum(
                torch.nn.functional.cross_entropy(self.model(one.image / 255), one.label) for one in batches.values()
            )

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(loaders, *, callbacks=None, checkpoint=None, reweights=False):
        module = Recorder(reweights=reweights)
        options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, callbacks=callbacks, **options
        )
        trainer.fit(module, loaders, ckpt_path=checkpoint)
        return module.keys

    for checkpoint in ("step=3",) if BRIEFLY else ("step=3", "epoch=0", "last"):
        sys.argv[1:] = [
            "--data",
            "shards/photos",
            "--devices",
            "2",
            "--epochs",
            "1" if BRIEFLY else "2",
            "--batch-size",
            "4",
            "--size",
            "32",
        ]
        sys.argv += ["--out", f"from-{checkpoint}", "--metrics", f"{checkpoint}-{RANK}.jsonl"]
        sys.argv += ["--resume", f"straight/{checkpoint}.ckpt"]
        runpy.run_path(str(ROOT / "examples" / "07_lightning.py"), run_name="__main__")

    if BRIEFLY:
        return {}

    def combined():  # the short loader is read two and a half times in each epoch
        return CombinedLoader({"long": make(), "short": make(subset=range(16))}, "max_size_cycle")

    every_step = ModelCheckpoint("combined", filename="{step}", every_n_train_steps=1, save_top_k=-1)
    whole = fit(combined(), callbacks=[every_step])
    resumed = {step: fit(combined(), checkpoint=f"combined/step={step}.ckpt") for step in (4, 7)}

    every_step = ModelCheckpoint("changed", filename="{step}", every_n_train_steps=1, save_top_k=-1)
    changed = [
        fit(make(), reweights=True, callbacks=[every_step]),
        *(fit(make(), reweights=True, checkpoint=f"changed/step={step}.ckpt") for step in (2, 4)),
    ]

    warnings.filterwarnings("ignore", "Your `IterableDataset` has `__len__` defined")
    options = {name: value for name, value in OPTIONS.items() if name != "num_workers"}
    dataset = wt.StreamingDataset("shards/photos", view=wt.RandomResizedCrop(32), **options)
    streamed = fit(DataLoader(dataset, batch_size=4, num_workers=1))
    documented = run_program("Lightning", devices=2)["trainer"].train_dataloader
    proof = str(documented.epoch_proof())
    whole_dataset = make(rank=0, world_size=1, num_workers=0, batch_size=40)
    left_out = [key for batch in whole_dataset for key, label in zip(batch.key, batch.label, strict=True) if label == 1]
    results = {"whole": whole, "resumed": resumed, "changed": changed, "left out": left_out}
    return {**results, "streamed": streamed, "proof": proof}


def trainer():
    """Run the documented program, then the Trainer without interruption, and again from checkpoints."""
    from transformers import Trainer, TrainingArguments

    class Recorder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.keys = linear(), []

        def forward(self, pixel_values, labels, keys):
            self.keys.append(list(keys))
            logits = self.model(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    class ImageTrainer(Trainer):
        def get_train_dataloader(self):
            self.loader = make(
                batch_transform=lambda image, label, key: {
                    "pixel_values": image / 255,
                    "labels": label,
                    "keys": key,
                }
            )
            if self.args.ignore_data_skip:
                self.loader.load_state_dict(json.loads(Path(self.model.checkpoint, "loader.json").read_text()))
            return self.loader

        def training_step(self, *args, **options):
            if self.model.reweights and self.state.global_step == 2:
                self.loader.reweight(classes={0: 3}, where={"label == 1": 0})
            return super().training_step(*args, **options)

    def fit(checkpoint=None, *, to="trainer", callbacks=None, **options):
        arguments = TrainingArguments(
            to, num_train_epochs=2, save_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, **options
        )
        module = Recorder()
        module.reweights, module.checkpoint = callbacks is not None, checkpoint
        ImageTrainer(module, arguments, callbacks=callbacks).train(resume_from_checkpoint=checkpoint)
        return {"keys": module.keys, "weights": module.model[2].weight.flatten().tolist()[:5]}

    saving = {}
    exec(compile(documented_code("Trainer of Hugging Face", 1), "docs/frameworks.md", "exec"), saving)
    reweighted = {"to": "reweighted", "callbacks": [saving["SaveLoader"]()]}
    results = {
        "straight": fit(),
        "mid": fit("trainer/checkpoint-3"),
        "reweighted": fit(**reweighted),
        "reweighted mid": fit("reweighted/checkpoint-3", **reweighted, ignore_data_skip=True),
    }
    if BRIEFLY:
        return results
    names = run_program("Trainer of Hugging Face")
    documented = names["trainer"].callback_handler
    proofs = [str(documented.train_dataloader.epoch_proof()), str(documented.eval_dataloader.epoch_proof())]
    again = fit("reweighted/checkpoint-6", **reweighted, ignore_data_skip=True)
    return {
        **results,
        "proofs": proofs,
        "second epoch": fit("trainer/checkpoint-6"),
        "end": fit("trainer/checkpoint-10"),
        "reweighted second epoch": again,
    }


def accelerate():
    """Test skipped batches, saved states, a DataLoader that would be split again, and the documented program."""
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
    from torch.utils.data import DataLoader

    import wds_tools as wt

    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    loader = make()
    same = accelerator.prepare(loader) is loader
    epochs = [[batch.key for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    skipped = [batch.key for batch in skip_first_batches(loader, 2)]
    after = [batch.key for batch in loader]

    accelerator.register_for_checkpointing(loader)
    loader.set_epoch(1)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    accelerator.save_state("state")
    accelerator.wait_for_everyone()
    loader.set_epoch(0)
    accelerator.load_state("state")
    loaded = [batch.key for batch in loader]

    loader.set_epoch(2)
    changed = []
    for number, batch in enumerate(loader):
        changed.append([batch.key, batch.label.tolist()])
        if number == 1:
            loader.reweight(classes={0: 3}, where={"label == 1": 0})
        if number == 2:
            accelerator.save_state("changed")
    accelerator.wait_for_everyone()
    accelerator.load_state("changed")
    reloaded = [[batch.key, batch.label.tolist()] for batch in loader]

    def streamed(**options):
        options = {"batch_size": 4, "fields": "__key__", "shuffle": True, **options}
        return accelerator.prepare(DataLoader(wt.StreamingDataset("shards/photos", **options), batch_size=4))

    try:
        list(streamed())
    except wt.OptionError as error:
        refused = str(error)
    divided = [key for keys in streamed(rank=0, world_size=1) for key in keys]
    processes = accelerator.num_processes
    run_program("Accelerate")
    return {
        "processes": processes,
        "same": same,
        "epochs": epochs,
        "skipped": skipped,
        "after": after,
        "loaded": loaded,
        "changed": changed,
        "reloaded": reloaded,
        "refused": refused,
        "divided": divided,
    }


def timm():
    """Run the documented program, and use a loader as train.py of timm does."""
    import torch.distributed as dist
    from timm.data.loader import PrefetchLoader

    dist.init_process_group("gloo")
    proof = str(run_program("timm", batch_size=16)["loader"].epoch_proof())
    loader = make(fields=("image", "label"))
    plain, batches = [list(loader) for _ in range(2)], PrefetchLoader(loader, device=torch.device("cpu"))
    equal = []
    for epoch in (1, 0):
        batches.sampler.set_epoch(epoch)
        mean, std = batches.mean, batches.std
        equal += [
            torch.allclose(images, (expected.float() - mean) / std, atol=1e-5) and torch.equal(labels, expected_labels)
            for (images, labels), (expected, expected_labels) in zip(batches, plain[epoch], strict=True)
        ]
    facts = {"steps": len(batches), "samples": len(batches.dataset), "mixup": batches.mixup_enabled}
    dist.destroy_process_group()
    return {"proof": proof, "equal": equal, **facts}


def ray():
    """Run the documented training function, then loaders with and without `prepare_data_loader`."""
    os.environ["PYTHONPATH"] = str(ROOT)
    import ray as ray_core

    source = documented_code("Ray Train").replace("print(loader.epoch_proof())", "return loader.epoch_proof()")

    def train(config):
        import ray.train
        from ray.train.torch import prepare_data_loader
        from torch.utils.data import DataLoader

        import wds_tools as wt

        names = {"__name__": "documentation"}
        exec(compile(source, "docs/frameworks.md", "exec"), names)
        documented = str(names["train"]({"data": config["photos"]}))

        options = {"batch_size": 4, "shuffle": True, "fields": ("label", "__key__")}
        loader = wt.make_loader(config["photos"], num_workers=1, **options)
        plain = [[list(batch.key) for batch in loader] for _ in range(2)]
        prepared = prepare_data_loader(loader)
        seen = []
        for epoch in (1, 0):
            prepared.sampler.set_epoch(epoch)
            seen.append([list(keys) for _, keys in prepared])
        streamed = prepare_data_loader(DataLoader(wt.StreamingDataset(config["photos"], **options), batch_size=4))
        facts = {
            "documented": documented,
            "plain": plain,
            "prepared": seen[::-1],
            "steps": len(prepared),
            "streamed": [list(keys) for _, keys in streamed],
            "proof": str(loader.epoch_proof()),
        }
        rank = ray.train.get_context().get_world_rank()
        Path(config["out"], f"{rank}.json").write_text(json.dumps(facts))

    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray_core.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    config = {"photos": str(Path("shards/photos").resolve())}
    folder = str(Path.cwd())
    TorchTrainer(
        train,
        train_loop_config={**config, "out": folder},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    ray_core.shutdown()


def spawned():
    """Use torch.multiprocessing.spawn with a loader that is created before the process group."""
    import torch.multiprocessing

    torch.multiprocessing.spawn(spawned_rank, args=(str(Path.cwd()),), nprocs=2)


def spawned_rank(rank, folder):
    import torch.distributed as dist

    os.chdir(folder)
    torch.set_num_threads(1)
    loader = make()
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    facts = {"steps": [list(batch.key) for batch in loader], "proof": str(loader.epoch_proof())}
    Path(f"{rank}.json").write_text(json.dumps(facts))
    dist.barrier()
    dist.destroy_process_group()


def main():
    name, folder = sys.argv[1:3]
    os.chdir(folder)
    torch.set_num_threads(1)
    results = globals()[name]()
    if results:
        Path(f"{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
