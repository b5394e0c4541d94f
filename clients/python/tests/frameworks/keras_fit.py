"""Keras' `fit`. With "ours", a callback reports the steps."""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy
import truth

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Embedding(64, 16), keras.layers.Dense(64)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(0.01), loss)
ids = numpy.arange(2 * 6 * truth.LAST).reshape(-1, 6) % 64


class Counting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        truth.batch(12, 2)
        truth.step(batch + 1, logs["loss"], float(numpy.asarray(self.model.optimizer.learning_rate)))


callbacks = [Counting()]
if "ours" in sys.argv:
    import memwarden

    callbacks.append(memwarden.KerasCallback(batch_size=2, sequence_length=6))
model.fit(ids, ids, batch_size=2, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
truth.end()
