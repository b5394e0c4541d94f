"""Modules whose calls run hooks as PyTorch's do."""

class Handle:
    def __init__(self, hooks, key):
        self.hooks, self.key = hooks, key

    def remove(self):
        self.hooks.pop(self.key, None)


def _add(hooks, hook):
    key = object()
    hooks[key] = hook
    return Handle(hooks, key)


class Module:
    def __init__(self, **parameters):
        self.training = True
        self._parameters, self._modules = dict(parameters), {}
        self._before, self._after = {}, {}

    def add(self, **modules):
        self._modules.update(modules)
        return self

    def named_parameters(self):
        yield from self._parameters.items()
        for name, module in self._modules.items():
            yield from ((name + "." + inner, each) for inner, each in module.named_parameters())

    def parameters(self):
        return (each for _, each in self.named_parameters())

    def modules(self):
        yield self
        for module in self._modules.values():
            yield from module.modules()

    def named_buffers(self):
        return iter(())

    def register_forward_pre_hook(self, hook, with_kwargs):
        return _add(self._before, hook)

    def register_forward_hook(self, hook):
        return _add(self._after, hook)

    def __call__(self, *args, **kwargs):
        for hook in list(self._before.values()):
            hook(self, args, kwargs)
        result = self.forward(*args, **kwargs)
        for hook in list(self._after.values()):
            hook(self, args, result)
        return result

    def forward(self, *args, **kwargs):
        return None
