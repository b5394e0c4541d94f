def vector_norm(tensor, ord):
    assert ord == float("inf")
    from .. import Tensor

    values = [abs(each) for each in tensor.data]
    worst = next((each for each in values if each != each), None)
    return Tensor([max(values) if worst is None else worst], (), device=str(tensor.device))
