calls = 0


def backward(*tensors):
    global calls
    calls += 1
