//! Real lines of each framework, and a log of several.

use std::time::Duration;

use expect_test::{Expect, expect};

use super::oom::{self, Cause};
use super::*;

/// The values of a reading as text.
fn values(reading: &Reading) -> String {
    let shown = format!("{:?}", Reading { phases: [None; 3], ..reading.clone() });
    let fields = shown
        .trim_start_matches("Reading { ")
        .trim_end_matches(" }")
        .replace("phases: [None, None, None], ", "");
    let values = fields.split(", ").filter(|field| !field.ends_with(": None") && !field.ends_with(": false"));
    let mut values: Vec<String> = values.map(|field| field.replace("Some(", "").replace(')', "")).collect();
    for (name, seconds) in PHASES.iter().zip(reading.phases) {
        values.extend(seconds.map(|seconds| format!("{name}: {seconds:.3}")));
    }
    values.join(" ")
}

/// Checks the values of each line and the framework that recognizes it.
#[track_caller]
fn check(lines: &str, expected: &Expect) {
    let mut shown = String::new();
    for line in lines.lines() {
        match read(&clean(line.as_bytes()).text) {
            Some((framework, reading)) => {
                shown.push_str(&format!("{} {}\n", framework.label(), values(&reading)))
            }
            None => shown.push_str("-\n"),
        }
    }
    expected.assert_eq(&shown);
}

#[test]
fn megatron() {
    check(
        " [2024-08-21 10:19:42] iteration        4/   25000 | consumed samples:         4096 | elapsed time per iteration (ms): 270125.4 | throughput per GPU (TFLOP/s/GPU): 449.6 | learning rate: 7.500000E-08 | global batch size:  1024 | lm loss: 2.120380E+00 | loss scale: 1.0 | grad norm: 14.218 | number of skipped iterations:   0 | number of nan iterations:   0 |
 iteration        1/  317892 | consumed samples:           96 | consumed tokens:       393216 | elapsed time per iteration (ms): 25849.1 | learning rate: 3.000E-04 | global batch size:    96 | lm loss: nan | loss scale: 1.0 | number of skipped iterations:   2 | number of nan iterations:   1 | samples per second: 3.714 | TFLOPs: 108.2 |
[2024-04-21 02:45:24][INFO][training:1251] -  iteration=       2/  317892 | consumed_samples=         512 | consumed_tokens=     2097152 | elapsed_time_per_iteration_ms=16030.6 | learning_rate=0.000000 | global_batch_size=  256 | lm loss=11.208171 | loss_scale=65536.0 | actual_seqlen= 4096 | number_of_skipped_iterations=  0
[20251023 12:39:12][rank-63/64][INFO ] [--------trainer.py:2382] :  iteration      424/   40000 | consumed samples:        27136 | elapsed time per iteration (ms): 16601.3/17219.3 | hip mem usage/free/total/usage_ratio: 253.38GB/2.60GB/255.98GB/98.98% | throughput per GPU (TFLOP/s/GPU): 11.9/11.5 | tokens per GPU (tokens/s/GPU): 246.7/238.1 | learning rate: 9.997254E-06 | global batch size:    64 | lm loss: 4.447942E+00 | loss scale: 1.0 | grad norm: 6.142 | num zeros: 960902016.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
[Rank 0] (after 1 iterations) memory (MB) | allocated: 18244.640625 | max allocated: 41299.50146484375 | reserved: 46764.0 | max reserved: 46764.0
 validation loss at iteration 1000 | lm loss value: 2.120380E+00 | lm loss PPL: 8.334302E+00 |
Theoretical memory footprints: weight and optimizer=16545.62 MB
 iteration        4/   250",
        &expect![[r#"
            megatron step: 4 steps_planned: 25000 step_seconds: 270.1254 samples: 4096 global_batch: 1024 flops_per_gpu: 449600000000000.0 loss: 2.12038 learning_rate: 7.5e-8 grad_norm: 14.218 loss_scale: 1.0 skipped_more: 0 nan_more: 0
            megatron step: 1 steps_planned: 317892 step_seconds: 25.8491 tokens: 393216 samples: 96 global_batch: 96 samples_per_second: 3.714 flops_per_gpu: 108200000000000.0 loss_not_finite: true learning_rate: 0.0003 loss_scale: 1.0 skipped_more: 2 nan_more: 1
            megatron step: 2 steps_planned: 317892 step_seconds: 16.0306 tokens: 2097152 samples: 512 global_batch: 256 loss: 11.208171 learning_rate: 0.0 loss_scale: 65536.0 skipped_more: 0
            megatron step: 424 steps_planned: 40000 step_seconds: 16.6013 samples: 27136 global_batch: 64 tokens_per_second_per_gpu: 246.7 flops_per_gpu: 11900000000000.0 loss: 4.447942 learning_rate: 9.997254e-6 grad_norm: 6.142 loss_scale: 1.0 skipped_more: 0 nan_more: 0
            megatron rank: 0 allocated: 19130892288 allocated_peak: 43305666048 reserved: 49035608064 reserved_peak: 49035608064
            -
            -
            -
        "#]],
    );
}

#[test]
fn deepspeed() {
    check(
        "[2023-08-02 00:41:17,936] [INFO] [timer.py:215:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=220.69530887096045, CurrSamplesPerSec=222.88787331278564, MemAllocated=0.07GB, MaxMemAllocated=1.36GB
[2022-03-01 10:00:00,000] [INFO] [timer.py:157:stop] 0/20, RunningAvgSamplesPerSec=-inf, CurrSamplesPerSec=12.5, MemAllocated=0.07GB, MaxMemAllocated=1.36GB
[2024-06-21 10:50:42,167] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, lr=[1.887433467970254e-08, 1.887433467970254e-08], mom=[(0.9, 0.999), (0.9, 0.999)]
[2024-06-21 10:50:42,168] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 25341.72 | bwd: 77707.38 | bwd_inner: 75751.84 | bwd_allreduce: 1955.54 | step: 2218.38
[2024-06-21 10:50:42,167] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 25341.72 | bwd_microstep: 77707.38 | step_microstep: 2218.38
0: [2023-10-16 15:16:33,376] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 0.00 | bwd: 0.00 | bwd_inner: 0.00 | bwd_allreduce: 0.00 | step: 0.00
[2023-06-05 21:52:10,123] [INFO] [utils.py:786:see_memory_usage] MA 1.36 GB         Max_MA 2.5 GB         CA 3.0 GB         Max_CA 3 GB
COMA 1.36 GB Max_MA 2.5 GB",
        &expect![[r#"
            deepspeed step: 10 samples_per_second: 222.88787331278564 allocated: 75161928 allocated_peak: 1460288881
            deepspeed samples_per_second: 12.5 allocated: 75161928 allocated_peak: 1460288881
            deepspeed rank: 0 step: 10 learning_rate: 1.887433467970254e-8 skipped: 4
            deepspeed rank: 0 forward: 25.342 backward: 77.707 optimizer: 2.218
            -
            -
            deepspeed allocated: 1460288881 allocated_peak: 2684354560 reserved: 3221225472 reserved_peak: 3221225472
            -
        "#]],
    );
}

#[test]
fn hugging_face() {
    check(
        "{'loss': 0.4231, 'grad_norm': 1.23, 'learning_rate': 4.9e-05, 'epoch': 0.12}
{'loss': '0.4231', 'grad_norm': 'nan', 'learning_rate': '4.9e-05', 'num_tokens': '32768.0', 'epoch': '0.12'}
{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.12}
 12%|█▏        | 120/1000 [01:32<11:20,  1.29it/s]
100%|██████████| 1000/1000 [1:01:32<00:00,  2.50s/it]
{'eval_loss': 0.5, 'eval_runtime': 3.2, 'epoch': 0.12}
{'train_runtime': 92.5, 'train_samples_per_second': 21.6, 'train_steps_per_second': 2.7, 'train_loss': 0.35, 'epoch': 3.0}
Map:  45%|████▌     | 450/1000 [00:01<00:01, 400.00 examples/s]
Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.29s/it]",
        &expect![[r#"
            hugging_face loss: 0.4231 learning_rate: 4.9e-5 grad_norm: 1.23
            hugging_face tokens: 32768 loss: 0.4231 learning_rate: 4.9e-5
            hugging_face loss_not_finite: true learning_rate: 0.0
            hugging_face step: 120 steps_planned: 1000 step_seconds: 0.7751937984496123
            hugging_face step: 1000 steps_planned: 1000 step_seconds: 2.5
            -
            hugging_face samples_per_second: 21.6 finished: true
            -
            -
        "#]],
    );
}

#[test]
fn llama_factory() {
    check(
        r#"{"current_steps": 10, "total_steps": 100, "loss": 0.9, "lr": 5e-05, "epoch": 0.1, "percentage": 10.0, "elapsed_time": "0:00:10", "remaining_time": "0:01:30", "throughput": 4096.5, "total_tokens": 40965, "vram_allocated": 12.5, "vram_reserved": 14.25}
{"current_steps": 11, "total_steps": 100, "loss": NaN, "lr": 5e-05, "epoch": 0.1, "percentage": 10.0, "elapsed_time": "0:00:10", "remaining_time": "0:01:30", "throughput": "512.25", "total_tokens": 0}
{"current_steps": 12, "total_steps": 100, "loss": NaN, "lr": 5e-05, "throughput": 0.0, "total_tokens": 0}
{"current_steps": 10, "total_st"#,
        &expect![[r#"
            llama_factory step: 10 steps_planned: 100 tokens: 40965 tokens_per_second: 4096.5 loss: 0.9 learning_rate: 5e-5 allocated_peak: 13421772800 reserved_peak: 15300820992
            llama_factory step: 11 steps_planned: 100 tokens_per_second: 512.25 loss_not_finite: true learning_rate: 5e-5
            llama_factory step: 12 steps_planned: 100 loss_not_finite: true learning_rate: 5e-5
            -
        "#]],
    );
}

#[test]
fn lightning() {
    check(
        "Epoch 0: : 100%|██████████| 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, consumed_samples=25600.0, train_step_timing in s=3.130]
Epoch 0: :   0%|          | 2000/603000 [1:03:17<317:00:58, v_num=, reduced_train_loss=2.600, global_step=2e+3, consumed_samples=1.28e+6, train_step_timing in s=1.900, val_loss=2.800]dation DataLoader 0: : 51it [00:20,  2.53it/s]
[my-full-rank-sft-1] [2025-12-17 04:54:49,774] [INFO] Epoch 1: : 1it [00:04,  4.36s/it, v_num=d3c7, reduced_train_loss=0.674, global_step=1.000, consumed_samples=128.0, train_step_timing in s=3.370, batch_time=4.400, samples/sec=14.60]     2025-12-17 04:54:49,774 [INFO]
Epoch 3:  45%|████▌     | 45/100 [00:10<00:12,  4.00it/s, v_num=0, train_loss=0.123]
Epoch 3:  45%|████▌     | 45/100 [00:10<00:12,  4.00it/s, loss=0.123]
Epoch 2/10 val: 100%|##########| 50/50 [00:01<00:00, 40.00it/s, loss=0.75]",
        &expect![[r#"
            lightning step: 99 step_seconds: 3.13 samples: 25600 loss: 0.0172
            lightning step_seconds: 1.9 loss: 2.6
            lightning step: 1 step_seconds: 3.37 samples: 128 samples_per_second: 14.6 loss: 0.674
            lightning step_seconds: 0.25 loss: 0.123
            -
            -
        "#]],
    );
}

#[test]
fn torchtitan() {
    check(
        "[rank0]:[titan] 2025-01-10 10:00:00,000 - root - INFO - \u{1b}[31mstep: 20  \u{1b}[32mloss: 11.83506  \u{1b}[38;2;180;60;0mgrad_norm:  9.6669  \u{1b}[33mmemory: 48.87GiB(51.44%)  \u{1b}[34mtps: 4,376  \u{1b}[36mtflops: 253.41  \u{1b}[35mmfu: 25.62%\u{1b}[39m
step: 20  loss: 11.83506  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 253.41  mfu: N/A
2024-11-01 00:00:00,000 - root - INFO - step:  1  loss: 12.2  memory: 30.1GiB(31.7%)  wps: 1,504  mfu: 8.80%
[rank0]:2025-01-10 10:00:00,000 - root - WARNING - 37 CUDA memory allocation retries.
2 CUDA OOM errors thrown.",
        &expect![[r#"
            torchtitan step: 20 tokens_per_second_per_gpu: 4376.0 flops_per_gpu: 253410000000000.0 mfu: 0.2562 loss: 11.83506 grad_norm: 9.6669 reserved_peak: 52473762939
            torchtitan step: 20 tokens_per_second_per_gpu: 4376.0 flops_per_gpu: 253410000000000.0 loss: 11.83506 reserved_peak: 52473762939
            torchtitan step: 1 tokens_per_second_per_gpu: 1504.0 mfu: 0.08800000000000001 loss: 12.2 reserved_peak: 32319628902
            torchtitan retries: 37
            torchtitan ooms: 2
        "#]],
    );
}

#[test]
fn nanogpt() {
    check(
        "iter 300: loss 2.4512, time 135.22ms, mfu 37.29%
iter 0: loss 10.9, time 35135.22ms, mfu -100.00%
step 500: train loss 2.1, val loss 2.2",
        &expect![[r#"
            nanogpt step: 300 step_seconds: 0.13522 mfu: 0.3729 loss: 2.4512
            nanogpt step: 0 step_seconds: 35.135220000000004 loss: 10.9
            -
        "#]],
    );
}

#[test]
fn mind_spore() {
    check(
        "2025-04-07 15:34:27,308 - [mindformers/core/callback/callback.py:529] - INFO - { Epoch:[  1/  2], step:[    1/   19], loss: 10.649, per_step_time: 103328ms, lr: 0.0, overflow cond: False, loss_scale: 1.0, global_norm: [1 31049], train_throughput_per_npu: 2.896T
- INFO - { Epoch:[  2/  2], step:[    1/ 6500], loss:[ 0.500/ 0.700], per_step_time: 166756ms, lr: 1e-05, overflow cond: True, loss_scale: 1.0, global_norm: [44.313248], train_throughput_per_npu: 2.849T
- INFO -    0.0% |                                                  | 0.00600 samples/s/p  25 days, 2:07:47 }
epoch: 0, step: 3 start
step processed tokens 4096, tokens/s/p 512.0
total processed tokens 12288
INFO - Virtual Memory: 32.45 GB | Process Memory: 28.76 GB",
        &expect![[r#"
            mindformers step: 1 step_seconds: 103.328 flops_per_gpu: 2896000000000.0 loss: 10.649 learning_rate: 0.0 loss_scale: 1.0 skipped_more: 0
            mindformers step: 6501 step_seconds: 166.756 flops_per_gpu: 2849000000000.0 loss: 0.5 learning_rate: 1e-5 grad_norm: 44.313248 loss_scale: 1.0 skipped_more: 1
            mindformers samples_per_second_per_gpu: 0.006
            mindrlhf step: 3
            mindrlhf tokens_per_second_per_gpu: 512.0
            mindrlhf tokens: 12288
            -
        "#]],
    );
}

#[test]
fn flagscale() {
    check(
        "Timestamp            Step     TFLOPS/GPU   TFLOPS     Samples/s    Tokens/s     Time(ms)   Memory(GB)
2025-06-24 11:27:20  10       100.25       802.00     120.6        123456       235.5      12.50     ",
        &expect![[r#"
            -
            flagscale step: 10 step_seconds: 0.2355 allocated: 13421772800
        "#]],
    );
}

/// PyTorch 2.1 misspells the capacity.
const MISSPELLED: &str = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total capacty of 79.11 GiB of which 183.38 MiB is free. Process 3616714 has 59.02 GiB memory in use. Including non-PyTorch memory, this process has 19.86 GiB memory in use. Of the allocated memory 16.55 GiB is allocated by PyTorch, and 688.21 MiB is reserved by PyTorch but unallocated.";
const NEW: &str = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.34 GiB of which 160.81 MiB is free. Process 47694 has 44.17 GiB memory in use. Of the allocated memory 43.36 GiB is allocated by PyTorch, and 396.27 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";

#[test]
fn out_of_memory() {
    let shown: String = [
        NEW,
        MISSPELLED,
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 23.55 GiB of which 1.65 GiB is free. Process 5906 has 293.38 MiB memory in use. Including non-PyTorch memory, this process has 21.22 GiB memory in use. 20.00 GiB allowed; Of the allocated memory 20.04 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 903.34 MiB is reserved by PyTorch but unallocated.",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 74.00 GiB already allocated; 1.18 GiB free; 77.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb",
        "RuntimeError: NPU out of memory. Tried to allocate 20.00 MiB (NPU 7; 60.97 GiB total capacity; 58.00 GiB already allocated; 58.00 GiB current active; 10.00 MiB free; 58.01 GiB reserved in total by PyTorch)",
        "RuntimeError: CUDA out of memory. Tried to allocate 1.00",
    ]
    .map(|line| oom::find(line).map(|oom| format!("{} {oom:?}\n", oom.cause().label())).unwrap_or_default())
    .concat();
    expect![[r#"
        exhaustion Oom { gpu: None, tried: Some(234881024), total: Some(47609712476), free: Some(168621507), in_use: None, allocated: Some(46557445489), unallocated: Some(415519212) }
        exhaustion Oom { gpu: Some(0), tried: Some(406847488), total: Some(84943715697), free: Some(192287867), in_use: Some(21324512625), allocated: Some(17770427187), unallocated: Some(721640489) }
        exhaustion Oom { gpu: Some(3), tried: Some(2147483648), total: Some(25286619955), free: Some(1771674010), in_use: Some(22784801505), allocated: Some(21517786153), unallocated: Some(947220644) }
        fragmentation Oom { gpu: Some(0), tried: Some(2147483648), total: Some(84986665370), free: Some(1267015352), in_use: None, allocated: Some(79456894976), unallocated: Some(3758096384) }
        exhaustion Oom { gpu: Some(7), tried: Some(20971520), total: Some(65466039009), free: Some(10485760), in_use: None, allocated: Some(62277025792), unallocated: Some(10737418) }
        unknown Oom { gpu: None, tried: None, total: None, free: None, in_use: None, allocated: None, unallocated: None }
    "#]].assert_eq(&shown);
    assert_eq!(oom::find("RuntimeError: CUDA error: out of memory"), None);
    let jax = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.";
    assert_eq!(oom::find(jax).unwrap().tried, Some(17_179_869_184));
}

/// Lines as 40 programs write them, each program after a line `# name`, and what is read of each line.
#[test]
fn a_corpus_of_lines_has_its_values_and_nothing_else() {
    let lines = include_str!("../../../tests/fixtures/log_lines.txt");
    let mut shown = String::new();
    for line in lines.lines() {
        let read = (!line.starts_with("# ")).then(|| read(&clean(line.as_bytes()).text));
        shown.push_str(&match read {
            None => format!("{line}\n"),
            Some(None) => "-\n".to_owned(),
            Some(Some((framework, reading))) => format!("{} {}\n", framework.label(), values(&reading)),
        });
    }
    expect_test::expect_file!["../../../tests/fixtures/log_lines.expected"].assert_eq(&shown);
}

fn followed(only: Option<Framework>, lines: &[(u64, &str)]) -> Tracker {
    let mut tracker = Tracker::new(only);
    for (second, line) in lines {
        tracker.line(line.as_bytes(), Duration::from_secs(*second));
    }
    tracker
}

#[test]
fn only_a_confirmed_bar_counts_steps() {
    let tracker = followed(
        None,
        &[(1, "  1%|          | 10/1000 [00:10<11:20,  1.00it/s]"), (1, "{'eval_loss': 0.5}")],
    );
    assert_eq!(tracker.latest(), &Reading::default());
    let tracker = followed(
        None,
        &[
            (1, "100%|██████████| 7/7 [00:10<00:00,  9.00it/s]"),
            (2, "  1%|          | 10/1000 [00:10<11:20,  1.00it/s]"),
            (2, "{'loss': 0.4231, 'epoch': 0.12}"),
            (3, " 50%|█████     | 4/8 [00:10<00:00,  9.00it/s]"),
            (3, "{'eval_loss': 0.5}"),
            (4, "  1%|          | 11/1000 [00:11<11:20,  2.00s/it]"),
        ],
    );
    let latest = tracker.latest();
    assert_eq!((latest.step, latest.steps_planned, latest.loss), (Some(11), Some(1000), Some(0.4231)));
    assert_eq!(latest.step_seconds, Some(2.0));
    assert_eq!(tracker.framework(), Some(Framework::HuggingFace));
    assert_eq!(tracker.usual(), Some(Duration::from_secs(2)));
}

#[test]
fn values_are_those_of_the_lowest_rank_and_failures_those_of_all() {
    let step =
        |rank: u32, step: u32| format!("[rank{rank}]:step: {step}  loss: 1.5  memory: 1.00GiB(1%)  tps: 10");
    let oom = format!("[rank5]: {NEW}");
    let other = format!("[rank6]: {NEW}");
    let lines = [step(3, 1), step(1, 2), step(2, 9), step(1, 3), oom.clone(), oom.clone(), other, oom];
    let timed: Vec<(u64, &str)> =
        [1, 2, 2, 3, 4, 5, 6, 70].into_iter().zip(lines.iter().map(String::as_str)).collect();
    let tracker = followed(Some(Framework::Torchtitan), &timed);
    assert_eq!((tracker.latest().step, tracker.latest().rank), (Some(3), Some(1)));
    assert_eq!(tracker.counts().ooms, [0, 3, 0]);
    assert_eq!(Cause::ALL[0], Cause::Fragmentation);
}

#[test]
fn losses_that_are_not_finite_are_counted_and_replace_the_value() {
    let tracker = followed(
        None,
        &[
            (1, "iter 1: loss 2.5, time 100.00ms, mfu 37.29%"),
            (2, "iter 2: loss nan, time 100.00ms, mfu 37.29%"),
            (3, "nothing of a known form"),
        ],
    );
    assert_eq!((tracker.latest().loss, tracker.latest().loss_not_finite), (None, true));
    let counts = tracker.counts();
    assert_eq!((counts.lines, counts.recognized, counts.nan, counts.skipped), (3, 2, Some(1), None));
}

#[test]
fn frameworks_are_found_by_their_names() {
    for framework in Framework::ALL {
        assert_eq!(Framework::of_label(framework.label()), Some(framework));
    }
    assert_eq!(Framework::of_label("auto"), None);
}

proptest::proptest! {
    #[test]
    fn never_panics(bytes: Vec<u8>, text in "[ -~é█]{0,80}", place in 0_usize..600) {
        let _ = followed(None, &[(0, &String::from_utf8_lossy(&bytes)), (1, &text)]);
        // A known line, truncated anywhere, followed by other text.
        for known in [NEW, "iteration 4/ 25 | elapsed time per iteration (ms): 2.4 | lm loss: 2 | grad norm: 1",
            "[Rank 0] step=10, skipped=4, lr=[1.0]", "{'loss': 0.4, 'learning_rate': 1} 12%|█▏ | 120/1000 [01:32<11:20, 1.29it/s]",
            "Epoch 0: : 100%|█| 100/100 [10:48<00:00, loss=0.1, global_step=99.00]", "step: 2 loss: 1 tps: 4 mfu: 2%",
            "{ Epoch:[  1/  2], step:[    1/   19], loss: 10.6, per_step_time: 1ms, global_norm: [1 3]",
            "MA 1.36 GB Max_MA 2.5 GB CA 3 GB Max_CA 3 GB", "0.0% | | 0.006 samples/s/p"] {
            let cut = known.floor_char_boundary(place.min(known.len()));
            let _ = followed(None, &[(0, &format!("{}{text}", &known[..cut]))]);
        }
    }
}
