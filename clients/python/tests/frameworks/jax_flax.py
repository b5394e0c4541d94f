"""A loop of JAX with Flax and Optax. With "ours", a line reports the step."""

import sys

import jax
import jax.numpy as jnp
import optax
import truth
from flax import linen


class Model(linen.Module):
    @linen.compact
    def __call__(self, ids):
        return linen.Dense(64)(linen.Embed(64, 16)(ids))


model, optimizer = Model(), optax.adamw(0.01)
parameters = model.init(jax.random.key(0), jnp.zeros((2, 6), int))
state = optimizer.init(parameters)


@jax.jit
def train(parameters, state, ids):
    def loss_of(parameters):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(parameters, ids), ids).mean()

    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, loss


if "ours" in sys.argv:
    import memwarden

    callback = memwarden.JaxCallback()
for n in range(1, truth.LAST + 1):
    ids = jax.random.randint(jax.random.key(n), (2, 6), 0, 64)
    parameters, state, loss = train(parameters, state, ids)
    truth.batch(ids.size, len(ids))
    truth.step(n, loss, 0.01)
    if "ours" in sys.argv:
        callback.step(n, parameters=parameters, tokens=ids.size, samples=len(ids), loss=loss, learning_rate=0.01)
truth.end()
