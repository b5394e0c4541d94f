//! Published figures, reproduced to the printed digit.

mod published;

use self::published::{Gpt, palm, seconds_to_train, torchtitan};
use super::*;

/// Layers, hidden width, feed-forward width, heads, key heads, vocabulary.
fn model(kind: &str, sizes: [u64; 6]) -> Shape {
    let [layers, hidden, ffn, heads, kv_heads, vocab] = sizes.map(Some);
    Shape { kind: Some(kind.to_owned()), layers, hidden, ffn, heads, kv_heads, vocab, ..Shape::default() }
}

fn llama3_8b() -> Shape {
    model("llama", [32, 4096, 14336, 32, 8, 128_256])
}

fn mixtral() -> Shape {
    Shape {
        experts: Some(8),
        experts_per_token: Some(2),
        ..model("mixtral", [32, 4096, 14336, 32, 8, 32000])
    }
}

fn qwen3() -> Shape {
    Shape { head_dim: Some(128), ..model("qwen3", [28, 1024, 3072, 16, 8, 151_936]) }
}

fn gpt(layers: f64, hidden: f64) -> Gpt {
    Gpt { layers, hidden, vocab: 51200.0, sequence: 2048.0 }
}

/// Operations of one optimizer step of the whole job: `global_batch` sequences of all data-parallel ranks together.
fn flops_per_iteration(
    shape: &Shape,
    sequence: u64,
    global_batch: u64,
    convention: Convention,
) -> Option<f64> {
    positive(flops_per_token(shape, sequence, convention)? * real(sequence) * real(global_batch))
}

#[track_caller]
fn prints(value: f64, digits: usize, expected: &str) {
    assert_eq!(format!("{value:.digits$}"), expected);
}

/// TFLOP/s of one GPU at this many tokens a second and GPU, by both counts of attention.
#[track_caller]
fn megatron(shape: &Shape, tokens: f64, full: &str, causal: &str) {
    for (convention, expected) in [(Convention::Full, full), (Convention::Causal, causal)] {
        prints(flops_per_token(shape, 8192, convention).unwrap() * tokens / 1e12, 1, expected);
    }
}

#[test]
fn llama_3_on_megatron() {
    // Megatron-LM, examples/llama/README.md: 800 and 780 TFLOP/s a GPU; its 315 tokens/s of the largest are rounded,
    // so that 834 cannot follow from it.
    megatron(&llama3_8b(), 13_812.0, "799.9", "710.9");
    megatron(&model("llama", [80, 8192, 28672, 64, 8, 128_256]), 1_621.0, "780.4", "728.2");
    megatron(&model("llama", [126, 16384, 53248, 128, 8, 128_256]), 315.0, "827.0", "795.0");
}

#[test]
fn per_token() {
    let each = |shape: &Shape, convention| flops_per_token(shape, 4096, convention).unwrap();
    assert_eq!(each(&mixtral(), Convention::Causal), 79_706_456_064.0);
    let llama2 = model("llama", [32, 4096, 11008, 32, 32, 32000]);
    assert_eq!(each(&llama2, Convention::Causal), 42_863_689_728.0);
    assert_eq!(each(&llama2, Convention::Full), 46_084_915_200.0);
    assert_eq!(palm(6_738_415_616.0, 32.0, 32.0, 128.0, 4096.0), 46_872_944_640.0);
    let qwen25 = Shape { head_dim: Some(128), ..model("qwen2", [28, 3584, 18944, 28, 4, 152_064]) };
    assert_eq!(each(&qwen25, Convention::Causal), 44_887_965_696.0);
    // The reference adds three operations for each element of the gate, which Megatron does not count.
    assert_eq!(each(&qwen25, Convention::Full) + 3.0 * 28.0 * 18944.0, 47_355_807_744.0);
    assert_eq!(each(&qwen3(), Convention::Causal), 4_985_192_448.0);
    // The result with a head dimension of hidden / heads: FlagScale's figure, with the elements of the gate.
    let assumed = Shape { head_dim: None, ..qwen3() };
    assert_eq!(each(&assumed, Convention::Full) + 3.0 * 28.0 * 3072.0, 4_456_968_192.0);
    assert_eq!(palm(123_587_328.0, 12.0, 12.0, 64.0, 1024.0), 854_770_176.0);
}

#[test]
fn aquila_is_a_llama() {
    let sizes = [32, 4096, 11008, 32, 32, 100_008];
    let [one, other] = ["aquila", "llama"].map(|kind| model(kind, sizes));
    assert_eq!(
        flops_per_token(&one, 2048, Convention::Full),
        flops_per_token(&other, 2048, Convention::Full)
    );
}

#[test]
fn narayanan_2021() {
    // Megatron-LM's README: 175B on 1,024 A100, batch 1,536, 32 s: 138 TFLOP/s.
    let model = gpt(96.0, 12288.0);
    prints(1536.0 * model.narayanan96() / 32.0 / 1024.0 / 1e12, 2, "137.66");
    // From the shape: full recomputation of a GPT is this formula.
    let shape = Shape { ffn: None, ..super::tests::model("gpt", [96, 12288, 1, 96, 96, 51200]) };
    let hardware = Convention::Hardware(Recompute::Full);
    prints(flops_per_iteration(&shape, 2048, 1536, hardware).unwrap() / 32.0 / 1024.0 / 1e12, 2, "137.66");
    // The table of ten models: hidden, layers, GPUs, TFLOP/s a GPU, printed parameters and PFLOP/s of the job.
    for (hidden, layers, gpus, tera, billions, peta) in [
        (2304.0, 24.0, 32.0, 137.0, "1.7", 4.4),
        (3072.0, 30.0, 64.0, 138.0, "3.6", 8.8),
        (4096.0, 36.0, 128.0, 142.0, "7.5", 18.2),
        (6144.0, 40.0, 256.0, 135.0, "18.4", 34.6),
        (8192.0, 48.0, 512.0, 138.0, "39.1", 70.8),
        (10240.0, 60.0, 1024.0, 140.0, "76.1", 143.8),
        (12288.0, 80.0, 1536.0, 148.0, "145.6", 227.1),
        (16384.0, 96.0, 1920.0, 155.0, "310.1", 297.4),
        (20480.0, 105.0, 2520.0, 163.0, "529.6", 410.2),
        (25600.0, 128.0, 3072.0, 163.0, "1008.0", 502.0),
    ] {
        prints(gpt(layers, hidden).parameters() / 1e9, 1, billions);
        // TFLOP/s are printed rounded, and so is their product with the GPUs.
        assert!((tera * gpus / 1e3 / peta - 1.0_f64).abs() < 0.005, "{hidden}");
    }
    let days = |tokens, parameters, gpus, flops| seconds_to_train(tokens, parameters, gpus, flops) / 86_400.0;
    prints(days(300e9, 175e9, 1024.0, 140e12), 1, "33.9");
    prints(days(450e9, 1e12, 3072.0, 163e12), 1, "83.2");
}

#[test]
fn korthikanti_2022() {
    for (layers, hidden, heads, gpus, batch, seconds, model_share, hardware_share) in [
        (48, 6144, 64, 8, 4, 1.10, "41.65", "43.81"),
        (96, 12288, 96, 64, 64, 13.75, "51.39", "52.77"),
        (105, 20480, 128, 280, 280, 37.83, "56.05", "56.96"),
        (128, 25600, 160, 512, 512, 71.49, "56.27", "57.01"),
    ] {
        let model = gpt(real(layers), real(hidden));
        let each = seconds * real(gpus) * 312e12;
        let share = |sequence: f64| 100.0 * real(batch) * sequence / each;
        prints(share(model.model72()), 2, model_share);
        prints(share(model.selective72()), 2, hardware_share);
        // From the shape.
        let shape =
            Shape { ffn: None, ..super::tests::model("gpt", [layers, hidden, 1, heads, heads, 51200]) };
        for (convention, expected) in [
            (Convention::Full, model_share),
            (Convention::Hardware(Recompute::None), model_share),
            (Convention::Hardware(Recompute::Selective), hardware_share),
        ] {
            let all = flops_per_iteration(&shape, 2048, batch, convention).unwrap();
            prints(100.0 * all / each, 2, expected);
        }
    }
}

#[test]
fn h100_weak_scaling() {
    // Megatron-LM HEAD, images/model_table.png: TFLOP/s a GPU and its printed MFU, of 989.
    for (tera, printed) in [
        (408.8, "41"),
        (465.9, "47"),
        (489.1, "49"),
        (459.6, "46"),
        (419.7, "42"),
        (420.5, "43"),
        (432.8, "44"),
        (474.4, "48"),
        (459.9, "47"),
    ] {
        let peak = peaks::peak("NVIDIA H100 80GB HBM3", peaks::Precision::Bf16, &[]).unwrap();
        prints(100.0 * utilization(tera * 1e12, peak).unwrap(), 0, printed);
    }
}

#[test]
fn torchtitan_and_palm() {
    let each = torchtitan(8_030_261_248.0, 128_256.0 * 4096.0, 32.0, 32.0, [128.0; 2], 8192.0);
    assert_eq!(each, 57_914_449_920.0);
    // benchmarks/llama3_h100_202412: "33 % to 39 %".
    for (tokens, expected) in [(5_762.0, "33.74"), (6_667.0, "39.04")] {
        prints(100.0 * utilization(each * tokens, 989e12).unwrap(), 2, expected);
    }
    // A line of its log: 4,376 tokens/s, 253.41 TFLOP/s, 25.62 %.
    prints(253.41e12 / 4376.0 / 1e9, 3, "57.909");
    prints(253.41 / 0.2562, 1, "989.1");
    let with = palm(540.35e9, 118.0, 48.0, 256.0, 2048.0);
    let share = |each: f64| 100.0 * each * 238.3e3 / (6144.0 * 275e12);
    prints(share(with), 2, "46.23");
    let shape = Shape { parameters: Some(540_350_000_000), ..Shape::default() };
    prints(share(flops_per_token(&shape, 0, Convention::SixN).unwrap()), 2, "45.73");
}

#[test]
fn data_parallel_ranks_are_counted_once() {
    // FlagScale's perf_monitor divides a replica's tokens by the GPUs of the job: 100 in place of 800 TFLOP/s.
    let each = flops_per_token(&llama3_8b(), 8192, Convention::Full).unwrap();
    let tera = |rank: f64, world, replicas| flops_per_gpu(each, rank, world, replicas).unwrap() / 1e12;
    prints(tera(13_812.0, 8, 8), 1, "799.9");
    // Two GPUs share each replica, whose ranks both report its tokens.
    prints(tera(2.0 * 13_812.0, 8, 4), 1, "799.9");
    let step = flops_per_iteration(&llama3_8b(), 8192, 128, Convention::Full).unwrap();
    prints(step / (128.0 * 8192.0 / 110_496.0) / 8.0 / 1e12, 1, "799.9");
    for (world, replicas) in [(0, 1), (8, 0), (8, 3), (4, 8)] {
        assert_eq!(flops_per_gpu(each, 1.0, world, replicas), None);
    }
}

#[test]
fn parameters_are_those_of_the_published_checkpoints() {
    let tied = |shape: Shape, tied| Shape { tied_embeddings: Some(tied), ..shape };
    for (shape, expected) in [
        (tied(llama3_8b(), false), 8_030_261_248.0),
        (tied(model("llama", [32, 4096, 11008, 32, 32, 32000]), false), 6_738_415_616.0),
        (tied(mixtral(), false), 46_702_792_704.0),
        (tied(model("qwen2", [28, 3584, 18944, 28, 4, 152_064]), false), 7_615_616_512.0),
        (tied(qwen3(), true), 596_049_920.0),
    ] {
        assert_eq!(parameters(&shape, 0), Some(expected), "{:?}", shape.kind);
        assert_eq!(parameters(&Shape { tied_embeddings: None, ..shape }, 0), None);
    }
    // GPT-2 with 1,024 positions.
    assert_eq!(parameters(&model("gpt2", [12, 768, 3072, 12, 12, 50257]), 1024), Some(124_439_808.0));
    let reported = Shape { parameters: Some(46_702_792_704), ..mixtral() };
    assert_eq!(active_parameters(&reported), Some(12_879_925_248.0));
}

#[test]
fn shared_experts_and_dense_layers_count() {
    // Qwen1.5-MoE-A2.7B: 60 experts of 1408, four visited, a shared one of 5632.
    let all = Shape {
        experts: Some(60),
        experts_per_token: Some(4),
        expert_ffn: Some(1408),
        shared_expert_ffn: Some(5632),
        ..model("qwen2_moe", [24, 2048, 5632, 16, 16, 151_936])
    };
    let each = |shape: &Shape| flops_per_token(shape, 2048, Convention::Full).unwrap();
    // Four times 1408 is 5632: so each token visits as much as two dense layers of 5632.
    let dense = model("qwen2", [24, 2048, 2 * 5632, 16, 16, 151_936]);
    assert_eq!(each(&all), each(&dense));
    // One dense layer without its second half.
    let mixed = Shape { moe_layers: Some(23), ..all.clone() };
    assert_eq!(each(&all) - each(&mixed), 6.0 * 3.0 * 2048.0 * 5632.0);
}

#[test]
fn weights_that_are_not_trained_need_no_gradients() {
    let shape = Shape { parameters: Some(1000), trainable: Some(0), ..llama3_8b() };
    let each = |shape: &Shape| flops_per_token(shape, 8192, Convention::SixN).unwrap();
    assert_eq!(each(&shape), 4000.0);
    assert_eq!(each(&Shape { trainable: Some(1000), ..shape.clone() }), 6000.0);
    assert_eq!(each(&Shape { trainable: None, ..shape }), 6000.0);
}

#[test]
fn missing_or_contradictory_shapes_give_no_estimate() {
    let full = |shape: &Shape| flops_per_token(shape, 4096, Convention::Full);
    let good = llama3_8b();
    assert!(full(&good).is_some());
    for (what, shape) in [
        ("no layers", Shape { layers: None, ..good.clone() }),
        ("zero heads", Shape { heads: Some(0), ..good.clone() }),
        ("no width", Shape { ffn: None, ..good.clone() }),
        ("heads that do not divide", Shape { heads: Some(33), kv_heads: Some(3), ..good.clone() }),
        ("more key heads than heads", Shape { kv_heads: Some(64), ..good.clone() }),
        ("beyond belief", Shape { layers: Some(u64::MAX), ..good.clone() }),
        ("more mixtures than layers", Shape { moe_layers: Some(33), ..mixtral() }),
        ("more visited than there are", Shape { experts_per_token: Some(9), ..mixtral() }),
        ("kind not reported", Shape { kind: None, gated: Some(true), ..good.clone() }),
        ("unknown whether gated", Shape { kind: Some("olmo2".to_owned()), ..good.clone() }),
        ("latent attention", Shape { kind: Some("deepseek_v3".to_owned()), ..good.clone() }),
    ] {
        assert_eq!(full(&shape), None, "{what}");
    }
    assert!(full(&Shape { kind: Some("OLMo2".to_owned()), gated: Some(true), ..good.clone() }).is_some());
    assert_eq!(flops_per_token(&good, 0, Convention::Full), None);
    assert_eq!(flops_per_token(&Shape::default(), 4096, Convention::SixN), None);
    assert_eq!(utilization(1.0, 0.0), None);
}

#[test]
fn a_kind_that_is_not_listed_has_no_value_but_a_reason() {
    for kind in [
        "falcon_h1",
        "minimax",
        "olmo_hybrid",
        "gpt_oss",
        "llama4_text",
        "lfm2",
        "gemma3_text",
        "mistral with other attention",
    ] {
        let sizes = [32, 4096, 14336, 32, 8, 128_000];
        let shape = Shape { gated: Some(true), parameters: Some(8_510_000_000), ..model(kind, sizes) };
        for convention in [Convention::Full, Convention::Causal, Convention::Hardware(Recompute::Full)] {
            assert_eq!(flops_per_token(&shape, 32768, convention), None, "{kind}");
        }
        // Six operations a parameter need no kind.
        assert_eq!(flops_per_token(&shape, 32768, Convention::SixN), Some(6.0 * 8_510_000_000.0));
        let reason = why_unknown(&shape, 32768).unwrap();
        assert_eq!(reason, format!("no formula is known for models of kind {kind}"));
    }
    assert_eq!(why_unknown(&llama3_8b(), 8192), None);
    assert_eq!(why_unknown(&llama3_8b(), 0).unwrap(), "no sequence length is reported");
}

proptest::proptest! {
    #[test]
    fn never_more_than_numbers(sizes: [Option<u64>; 12], gated: Option<bool>, sequence: u64, small: bool) {
        let sizes = sizes.map(|size| size.map(|size| if small { size % 100 } else { size }));
        let [layers, hidden, ffn, heads, kv_heads, head_dim, vocab, experts, expert_ffn, moe_layers, parameters, trainable] = sizes;
        let shape = Shape {
            layers, hidden, ffn, heads, kv_heads, head_dim, vocab, gated, experts,
            experts_per_token: Some(2), expert_ffn, moe_layers, parameters, trainable, ..Shape::default()
        };
        for convention in [Convention::Full, Convention::Causal, Convention::SixN, Convention::Hardware(Recompute::Full)] {
            if let Some(each) = flops_per_token(&shape, sequence, convention) {
                proptest::prop_assert!(each.is_finite() && each > 0.0);
            }
        }
        let _ = super::parameters(&shape, sequence);
    }
}
