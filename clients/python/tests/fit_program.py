"""A program on the fake GPU, whose allocator the test moves."""

GIB = 1 << 30
MIB = 1 << 20


def prediction(daemon, phase, **wanted):
    """The last prediction of a phase that has these values."""

    def found(daemon):
        each = [message for message in daemon.of("prediction") if message["phase"] == phase]
        return [message for message in each if all(message.get(key) == value for key, value in wanted.items())]

    daemon.wait(found)
    return found(daemon)[-1]


class Program:
    """A model on the fake GPU: each step allocates 1 MiB a token until the end of forward, and half as much above it."""

    def __init__(self, torch, monitor):
        torch.cuda.initialize()
        self.torch, self.fit = torch, monitor._fit
        self.monitor = monitor
        weight = torch.Tensor([0.0], (1024, 1024), device="cuda:0", requires_grad=True)
        frozen = torch.Tensor([0.0], (1024, 1024), device="cuda:0")
        self.optimizer = torch.optim.AdamW([weight, frozen])
        self.static, self.n = 2 * GIB, 0
        torch.cuda.allocated = torch.cuda.peak = self.static
        monitor._fit.made(self.optimizer)
        torch.optim.optimizer.register_optimizer_step_pre_hook(lambda optimizer, *_: self.fit.before_step(optimizer))
        torch.optim.optimizer.register_optimizer_step_post_hook(lambda optimizer, *_: self.fit.after_step(optimizer))
        self.weight = weight

    def step(self, samples, length):
        cuda, tokens = self.torch.cuda, samples * length
        cuda.allocated = self.static
        self.fit.forward_begins(samples, length)
        cuda.allocated = self.static + tokens * MIB
        cuda.peak = max(cuda.peak, cuda.allocated)
        self.fit.forward_ends(None)
        cuda.peak = max(cuda.peak, self.static + tokens * MIB * 3 // 2)
        cuda.allocated = self.static
        self.weight.grad = self.torch.Tensor([0.0], (1024, 1024), device="cuda:0")
        self.optimizer.step()
        if not self.optimizer.state:
            self.optimizer.state[self.weight] = {
                name: self.torch.Tensor([0.0], (1024, 1024), device="cuda:0") for name in ("exp_avg", "exp_avg_sq")
            }
            self.static += 8 * MIB
        self.n += 1
        self.monitor.step(self.n, tokens=tokens)
        self.monitor._fit.refresh()


class Loader:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def evaluate(program, torch, loader, batches, keeps, calls=1):
    """`keeps` says what is kept of each batch."""
    for batch in range(batches):
        program.fit.plan.loading(loader)
        for _ in range(calls):
            program.fit.evaluation_begins()
        torch.cuda.peak = max(torch.cuda.peak, torch.cuda.allocated + 64 * MIB)
        torch.cuda.allocated += keeps(batch)
