"""Train on two machines that may be killed at any moment: the weights are those of a training that nothing disturbed.

Without arguments, both machines are processes of this one, which begins both again when one is gone, as a cluster does.
On real ones: `python two_machines.py --machine 0 --address 10.0.0.1:1234 --folder /shared/run` on the first, the same
with `--machine 1` on the second. They need JAX, and a folder that both see.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

MACHINES, EPOCHS, BATCH = 2, 6, 16

random = np.random.default_rng(0)
LABELS = random.integers(0, 3, 96)
IMAGES = (random.uniform(-0.3, 0.3, (96, 32, 32, 3)) + (LABELS / 2 - 0.5)[:, None, None, None]).astype("float32")


def machine(number: int, address: str, folder: Path) -> None:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.distribution.initialize(address, MACHINES, number)  # before anything else that uses JAX
    import vit_keras
    from vit_keras import training, vit

    vit_keras.distribute("data")
    keras.utils.set_random_seed(0)  # the same weights on every machine
    model = vit.build_model(32, 8, 2, 32, 2, "tiny", 64, classes=3)

    class Share(keras.utils.PyDataset):
        """This machine's part of every batch, in an order that depends on the epoch alone."""

        epoch = 0

        def __len__(self):
            return len(IMAGES) // BATCH

        def __getitem__(self, step):
            order = np.random.default_rng(self.epoch).permutation(len(IMAGES))
            mine = order[step * BATCH : (step + 1) * BATCH][number::MACHINES]
            return IMAGES[mine], LABELS[mine]

    class State(keras.callbacks.Callback):
        """All that training changes, in one file of the first machine: it is there whole, or as it was."""

        file = folder / "state.npz"

        def variables(self):
            return [*model.variables, *model.optimizer.variables]

        def restore(self):
            if not self.file.exists():
                return 0
            with np.load(self.file) as state:
                for n, variable in enumerate(self.variables()):
                    variable.assign(state[f"value_{n}"])
                return int(state["epochs"])

        def on_epoch_begin(self, epoch, logs=None):
            data.epoch = epoch

        def on_epoch_end(self, epoch, logs=None):
            print(f"machine {number}: epoch {epoch + 1}, loss {logs['loss']:.6f}", flush=True)
            if number == 0:
                values = {f"value_{n}": np.asarray(variable) for n, variable in enumerate(self.variables())}
                np.savez(folder / "part.npz", epochs=epoch + 1, **values)
                os.replace(folder / "part.npz", self.file)

    data, state = Share(), State()
    recipe = training.recipe("finetune", epochs=EPOCHS, augmentation=None)
    recipe.compile(model, data, batch_size=BATCH)
    model.optimizer.build(model.trainable_variables)
    # Keras would shuffle the batches again, and differently after a restart: shuffle=False.
    options = {"epochs": EPOCHS, "shuffle": False, "callbacks": [*recipe.callbacks, state], "verbose": 0}
    model.fit(data, initial_epoch=state.restore(), **options)

    mine = np.array_split(IMAGES, MACHINES)[number]  # each machine predicts its own images, the same number of them
    np.save(folder / f"predictions-{number}.npy", model.predict(mine, batch_size=BATCH // MACHINES, verbose=0))
    vit_keras.distribute(None)  # what one machine does alone must not wait for the other
    if number == 0:
        model.save(folder / "model.keras")


def all_machines(folder: Path) -> None:
    """Run all on this computer; begin again until they are done."""
    for attempt in range(10):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, __file__, "--address", address, "--folder", str(folder)]
        running = [subprocess.Popen([*command, "--machine", str(n)]) for n in range(MACHINES)]
        print(f"attempt {attempt + 1}: processes {[process.pid for process in running]}", flush=True)
        while None in (codes := [process.poll() for process in running]) and not any(codes):
            time.sleep(0.1)
        for process in running:  # those that would wait for the one that is gone
            process.kill()
            process.wait()
        if not any(codes):
            return
    raise SystemExit("Ten attempts have failed.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", type=int, help="number of this machine; all of them here, if it is left out")
    parser.add_argument("--address", help="HOST:PORT of machine 0")
    parser.add_argument("--folder", type=Path, default=Path("two_machines"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.machine is None:
        all_machines(given.folder)
    else:
        machine(given.machine, given.address, given.folder)
