"""The largest micro-batch that is still to come, and the peak of a step as a function of its size."""

from types import SimpleNamespace

from memwarden import _fit_plan
from memwarden._fit_size import Batch, Curve, Footprint, Sizes, predicted


def test_state_that_is_allocated_in_a_later_step_is_no_activation():
    footprint = Footprint()
    begun, lengths = 1000.0, [10, 20, 30, 40, 50, 60]
    for number, length in enumerate(lengths):
        batch = Batch(4 * length, 4, length)
        footprint.settle(begun)
        footprint.forward(batch, begun, begun + 8.0 * length, starts=True)
        footprint.base = begun
        # Experts that are used for the first time; a buffer of a library.
        begun += {2: 5000.0, 3: 16.0}.get(number, 0.0)
    footprint.settle(begun)
    curve = footprint.activations.curve(0.0)
    assert footprint.activations.seen(Batch(120, 4, 30)) is None and footprint.activations.seen(Batch(160, 4, 40)) == 304.0
    assert abs(curve.at(Batch(400, 4, 100)) - 800.0) <= 40.0


def test_what_rises_above_the_activations_lies_between_its_bounds():
    footprint = Footprint()
    for units, reached, resident, peak in ((100, 1100, 1000, 1150), (200, 1200, 1060, 1310), (0, 1000, 1000, 1001)):
        footprint.rose(Batch(units), reached, resident, 1000, peak)
    # At least 50 / 100 and (110 - 60) / 200 bytes a unit, at most 50 / 100 and 110 / 200.
    assert footprint.rise() == (0.5, 0.0)


def test_code_that_runs_the_first_time_is_no_part_of_what_rises():
    footprint = Footprint()
    footprint.rose(Batch(100), 1100, 1000, 1000, 1190)
    footprint.read_code(40.0)
    assert footprint.rise() == (0.5, 0.0)


def test_what_rises_grows_with_the_length_where_backward_computes_scores_again():
    def rise(*batches):
        footprint = Footprint()
        for batch, size in batches:
            footprint.rose(batch, 1000.0, 1000.0, 1000.0, 1000.0 + size)
        return footprint.rise()

    def bytes_of(batch):
        return 2.0 * batch.units + 0.5 * batch.units * batch.length

    shorter, longer = Batch(16, 2, 8), Batch(64, 2, 32)
    assert rise((shorter, bytes_of(shorter)), (longer, bytes_of(longer))) == (2.0, 0.5)
    # Nothing shrinks with the size.
    assert rise((Batch(16, 2, 8), 1.0), (Batch(64, 2, 32), 640.0)) == (0.0, 10.0 / 32)
    # More samples of the same length, or less for each token of a longer batch, are nothing of that.
    assert rise((Batch(16, 2, 8), 32.0), (Batch(64, 8, 8), 160.0)) == (2.5, 0.0)
    assert rise((Batch(16, 2, 8), 32.0), (Batch(64, 2, 32), 64.0)) == (1.0, 0.0)


def test_a_longer_batch_uses_little_of_what_malloc_keeps():
    footprint = Footprint()
    for length in (10, 20, 30, 40):
        footprint.forward(Batch(length, 1, length), 1000.0, 1000.0 + length, starts=True)
    footprint.rose(Batch(40, 1, 40), 1040, 1000, 1000, 1080)
    footprint.base, footprint.kept = 1000.0, 100.0
    least = 1000.0 + 2 * 80
    assert least + 0.8 * 100.0 <= footprint.curve(0.0).at(Batch(80, 1, 80)) < least + 100.0
    assert footprint.spread >= 0.03 * footprint.base
    assert not footprint.keeps(1105.0) and footprint.kept == 100.0
    assert footprint.keeps(1200.0) and footprint.kept == 200.0, "a step that was not measured made malloc keep more"
    # On a GPU, where the allocator's counters are exact.
    footprint.kept = 0.0
    assert footprint.spread == 0.0 and footprint.curve(0.0).at(Batch(80, 1, 80)) == least


class Samples:
    """A data set of `rows`, which may be in any of its attributes."""

    def __init__(self, count, **attributes):
        self.count = count
        vars(self).update(attributes)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        raise AssertionError("no sample is loaded")


class Subset:
    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices


def test_lengths_of_samples_in_memory_are_read(torch):
    from memwarden._fit_plan import _longest

    rows = [[1] * 3, [1] * 9, [1] * 5]
    tensors = [torch.Tensor(row, (len(row),), dtype=torch.int64) for row in rows]
    for dataset in (
        [{"input_ids": row} for row in rows],
        Samples(3, input_ids=rows),
        Samples(3, input_ids=tensors, labels=tensors),
        Samples(3, encodings={"input_ids": rows, "attention_mask": rows}),
        Samples(3, examples=[{"input_ids": row} for row in rows]),
    ):
        assert _longest(dataset) == 9, vars(dataset) if not isinstance(dataset, list) else dataset
    assert _longest(Subset([{"input_ids": row} for row in rows], [0, 2])) == 5, "a part of them"
    for dataset in (
        Samples(3, texts=["a" * 50] * 3),
        Samples(2, input_ids=rows),
        Samples(3, paths=[[1] * 9] * 3),
        Samples(3, examples=[("a text", 1)] * 3, data_mean=torch.Tensor([0.0], ())),
        [("a text", 1)] * 3,
        Subset(Samples(3, input_ids=rows), [0]),
        iter(rows),
        None,
    ):
        assert _longest(dataset) is None


def test_lengths_that_the_batches_exceed_are_not_believed():
    from memwarden._fit_plan import Plan
    from memwarden._fit_size import Batch

    plan = Plan()
    plan._longest, plan._differ = (9, "the longest sample of the data"), True
    assert plan.largest(Batch(8, 2, 4), 3)[:2] == (Batch(18, 2, 9), "the longest sample of the data")
    assert "largest of 3 batches" in plan.largest(Batch(24, 2, 12), 3).source


def test_the_longest_text_stands_for_the_longest_sample_where_batches_are_as_long_as_texts():
    from memwarden._fit_plan import Plan, _characters
    from memwarden._fit_size import Batch

    words = [10 + 7 * number % 50 for number in range(100)] + [200]
    for data in (["a" * 4 * each for each in words], Samples(101, names=["b"] * 7, texts=["a" * 4 * each for each in words])):
        assert _characters(data) == sorted(4 * each for each in words)
    assert _characters([{"label": "x", "text": "a" * 9}, {"label": "y", "text": "a" * 5}]) == [5, 9]
    assert _characters(Samples(2, examples=[("a" * 3, 1), ("a" * 2, 0)])) == [2, 3]
    for data in ([], [1, 2], Samples(3, values=[[1], [2], [3]]), iter(words), SimpleNamespace(texts=["a"]), None):
        assert _characters(data) == []

    def longest(lengths):
        plan = Plan()
        plan._characters = sorted(4 * each for each in words)
        for length in lengths:
            plan.output(None, Batch(length, 1, length))
        return plan.largest(Batch(max(lengths), 1, max(lengths)), len(lengths))

    batch, source, longer, so_far = longest(words[:16])
    assert abs(batch.units - 200) < 30 and source == "about the longest text of the data" and longer > 0.0
    for lengths in (words[:15], [min(each, 40) for each in words[:16]], [8 + 5 * (each // 20) ** 4 for each in words[:16]]):
        assert "the largest of" in longest(lengths).source, lengths


def test_what_each_new_size_allocates_for_good_is_expected_of_those_to_come():
    def growth(bytes_of, lengths, left=1000, longest=100):
        footprint, begun, seen = Footprint(), 1000.0, set()
        for length in lengths:
            footprint.forward(Batch(length, 1, length), begun, begun + 8.0 * length, starts=True)
            begun += 0.0 if length in seen else bytes_of(len(seen))
            seen.add(length)
        return footprint.growth(left, Batch(longest, 1, longest))

    # Of the lengths 41 to 100, 10 have occurred.
    assert abs(growth(lambda _: 16.0, range(40, 51)) - 50 * 16.0) < 1.0
    assert growth(lambda _: 16.0, range(40, 51), left=0) == 0.0
    assert 0.0 < growth(lambda _: 16.0, [*range(40, 51), *[45] * 8], left=10) < 5 * 16.0, "sizes are new less often"
    assert growth(lambda count: 5000.0 * (count == 3), range(40, 51)) == 0.0, "parameters that are used now"
    assert growth(lambda _: 16.0, range(40, 43)) == 0.0, "too few"


def test_a_line_is_found_through_noise_and_a_square_only_where_it_helps():
    straight, bent = Sizes(), Sizes()
    for place, length in enumerate((64, 128, 200, 256, 300, 400, 500)):
        batch = Batch(4 * length, 4, length)
        straight.add(batch, 1000.0 * batch.units + (7919 * place % 11 - 5) * 2000.0)
        bent.add(batch, 1000.0 * batch.units + 3.0 * batch.units * length)
    line = straight.curve(0.0)
    assert line.per_square == 0.0 and abs(line.at(Batch(8000, 4, 2000)) / 8e6 - 1) < 0.05
    curve = bent.curve(0.0)
    assert abs(curve.per_square - 3.0) < 0.01
    assert abs(curve.at(Batch(8000, 4, 2000)) / (8e6 + 3.0 * 8000 * 2000) - 1) < 0.01


def test_a_square_is_found_in_short_batches_some_of_which_have_buffers_of_libraries():
    sizes = Sizes()
    for place, length in enumerate((42, 48, 34, 35, 46, 43, 41, 31, 44)):
        batch = Batch(4 * length, 4, length)
        buffers = 0.1 * 4000.0 * batch.units if place in (1, 5) else 0.0
        sizes.add(batch, 4000.0 * batch.units + 9.0 * batch.units * length + buffers)
    longest = Batch(4096, 4, 1024)
    assert abs(sizes.curve(0.0).at(longest) / (4000.0 * 4096 + 9.0 * 4096 * 1024) - 1) < 0.05
    # Two lengths can differ by anything.
    two = Sizes()
    for length, size in ((10, 100.0), (20, 210.0)):
        two.add(Batch(length, 1, length), size)
    assert two.curve(0.0).per_square == 0.0


def test_one_size_gives_the_line_from_nothing():
    sizes = Sizes()
    sizes.add(Batch(64, 4, 16), 640.0)
    assert sizes.curve(0.0) == Curve(0.0, 10.0, 0.0, 0.0)
    assert Sizes().curve(0.0) is None


def test_sizes_that_are_near_each_other_do_not_turn_the_line():
    sizes = Sizes()
    # The first has buffers of libraries.
    sizes.add(Batch(152, 2, 76), 1520.0)
    sizes.add(Batch(150, 2, 75), 900.0)
    assert 6.0 <= sizes.curve(0.0).at(Batch(768, 2, 384)) / 768 <= 10.0
    early, later = (predicted(Curve(100.0, 1.0, 0.0, 0.0), Batch(50), None, early) for early in (True, False))
    assert early[0] == later[0] and early[1] > later[1] + 10.0


def test_the_kept_sizes_are_bounded_and_the_largest_stay():
    sizes = Sizes()
    for units in range(1000):
        sizes.add(Batch(units), float(units))
    assert len(sizes) == 256 and sizes.seen(Batch(999)) == 999.0 and sizes.seen(Batch(0)) is None


def test_a_size_that_was_seen_has_no_doubt():
    assert predicted(Curve(100.0, 1.0, 0.0, 5.0), Batch(50), 151.0) == (151.0, 151.0)
    p50, p90 = predicted(Curve(100.0, 1.0, 0.0, 5.0), Batch(50), None)
    assert p50 == 150.0 < p90


def test_data_that_states_its_lengths_is_not_read():
    class Data:
        lengths = [3, 900, 5]

        def __len__(self):
            return 3

    class Loader:
        _dataset = Data()

    assert _fit_plan.Plan()._lengths(Loader()) == (900, "the longest sample of the data")
    Data.lengths = [3]
    assert _fit_plan.Plan()._lengths(Loader()) is None
