_before, _after = [], []


def register_optimizer_step_pre_hook(hook):
    _before.append(hook)


def register_optimizer_step_post_hook(hook):
    _after.append(hook)


class Optimizer:
    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]
        self.state, self.own = {}, ([], [])

    def __setstate__(self, state):
        vars(self).update(state)

    def register_step_pre_hook(self, hook):
        self.own[0].append(hook)

    def register_step_post_hook(self, hook):
        self.own[1].append(hook)

    def step(self):
        for hook in _before + self.own[0]:
            hook(self, (), {})
        for hook in _after + self.own[1]:
            hook(self, (), {})


class AdamW(Optimizer):
    pass
