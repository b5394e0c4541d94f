//! What is shown of each message.

use super::*;
use crate::model::timeline::EntryKind;

/// Complete lines of the examples in the protocol document.
fn examples() -> String {
    let protocol = include_str!("../../../../clients/PROTOCOL.md");
    let blocks = protocol.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.filter(|block| !block.contains("\"bye\"")).collect()
}

#[test]
fn the_examples_become_series_until_the_connection_closes() {
    let mut world = World::new();
    world.source.options.max_line_size = Bytes::new(65_536);
    let mut stream = world.connect();
    for line in examples().lines() {
        // Longer than the maximum line of these options; the parser's own tests cover it.
        let line = if line.len() < 1_000 { line } else { HELLO.trim_end() };
        world.send(&mut stream, &format!("{line}\n"));
    }
    let (shown, _) = world.sample();
    check(
        &shown,
        expect![[r#"
            memwarden_rank_info{workload="slurm/17",rank="3",local_rank="0",world="8",pid="PID",gpu="2",uuid="GPU-5f1d2a7c-0a3b-4c8e-9d55-0d9b6a1f0e11"} 1
            memwarden_training_message_age_seconds{workload="slurm/17",rank="3"} 0
            memwarden_training_step{workload="slurm/17",rank="3"} 120
            memwarden_training_step_age_seconds{workload="slurm/17",rank="3"} 0
            memwarden_training_steps_total{workload="slurm/17",rank="3"} 1
            memwarden_training_step_duration_seconds_sum{workload="slurm/17",rank="3"} 0.512
            memwarden_training_step_duration_seconds_count{workload="slurm/17",rank="3"} 1
            memwarden_training_step_last_duration_seconds{workload="slurm/17",rank="3"} 0.512
            memwarden_training_tokens_total{workload="slurm/17",rank="3"} 31457280
            memwarden_training_samples_total{workload="slurm/17",rank="3"} 7680
            memwarden_training_loss{workload="slurm/17",rank="3"} 2.317
            memwarden_training_learning_rate{workload="slurm/17",rank="3"} 0.0003
            memwarden_training_gradient_norm{workload="slurm/17",rank="3"} 1.04
            memwarden_training_skipped_steps_total{workload="slurm/17",rank="3"} 1
            memwarden_training_nonfinite_steps_total{workload="slurm/17",rank="3"} 0
            memwarden_training_phase_seconds_total{workload="slurm/17",rank="3",phase="forward"} 24.6
            memwarden_training_phases_total{workload="slurm/17",rank="3",phase="forward"} 120
            memwarden_training_phase_allocated_peak_bytes{workload="slurm/17",rank="3",phase="forward"} 66571993088
            memwarden_training_allocator_allocated_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 61203283968
            memwarden_training_allocator_allocated_peak_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 66571993088
            memwarden_training_allocator_active_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 61303283968
            memwarden_training_allocator_reserved_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 70866960384
            memwarden_training_allocator_reserved_peak_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 70866960384
            memwarden_training_allocator_requested_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 60813283968
            memwarden_training_allocator_inactive_split_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 3221225472
            memwarden_training_allocator_releasable_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 1073741824
            memwarden_training_allocator_largest_free_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 536870912
            memwarden_training_device_free_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 9663676416
            memwarden_training_device_total_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 85899345920
            memwarden_training_allocator_retries_total{workload="slurm/17",rank="3",device="0",gpu="2"} 0
            memwarden_training_allocator_ooms_total{workload="slurm/17",rank="3",device="0",gpu="2"} 0
            memwarden_training_pinned_bytes{workload="slurm/17",rank="3"} 4294967296
            memwarden_training_parameters{workload="slurm/17",rank="3",kind="all"} 8030261248
            memwarden_training_parameters{workload="slurm/17",rank="3",kind="trainable"} 41943040
            memwarden_training_parameters{workload="slurm/17",rank="3",kind="lora"} 41943040
            memwarden_training_model_bytes{workload="slurm/17",rank="3",kind="parameters"} 16060522496
            memwarden_training_model_bytes{workload="slurm/17",rank="3",kind="gradients"} 83886080
            memwarden_training_model_bytes{workload="slurm/17",rank="3",kind="optimizer"} 335544320
            memwarden_training_nonfinite_tensors{workload="slurm/17",rank="3",kind="nan"} 0
            memwarden_training_nonfinite_tensors{workload="slurm/17",rank="3",kind="inf"} 0
            memwarden_training_parameters_dtype_bytes{workload="slurm/17",rank="3",dtype="bf16"} 16060522496
            memwarden_training_parameters_group_bytes{workload="slurm/17",rank="3",group="mlp"} 9663676416
            memwarden_training_parameters_group_bytes{workload="slurm/17",rank="3",group="attention"} 5368709120
            memwarden_training_parameters_group_bytes{workload="slurm/17",rank="3",group="lora"} 83886080
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="optimizer",resource="device",device="0",gpu="2",estimate="p50"} 48318382080
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="optimizer",resource="device",device="0",gpu="2",estimate="p90"} 48318382080
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="step",resource="device",device="0",gpu="2",estimate="p50"} 89120571392
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="step",resource="device",device="0",gpu="2",estimate="p90"} 90194313216
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="save",resource="host",estimate="p50"} 6442450944
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="save",resource="host",estimate="p90"} 6442450944
            memwarden_fit_measured_peak_bytes{workload="slurm/17",rank="3",phase="step",resource="device",device="0",gpu="2"} 76450627584
            memwarden_training_checkpoint_state{workload="slurm/17",rank="3",state="saving"} 0
            memwarden_training_checkpoint_state{workload="slurm/17",rank="3",state="saved"} 0
            memwarden_training_checkpoint_state{workload="slurm/17",rank="3",state="failed"} 1
            memwarden_training_checkpoint_step{workload="slurm/17",rank="3"} 120
            memwarden_training_checkpoint_saved_timestamp_seconds{workload="slurm/17",rank="3"} 1700000000
            memwarden_training_client_dropped_total{workload="slurm/17",rank="3"} 0
            memwarden_training_process_rss_bytes{workload="slurm/17",rank="3"} 128974848
            memwarden_training_ranks{workload="slurm/17"} 1
            memwarden_training_world_size{workload="slurm/17"} 8
            memwarden_training_rank_conflicts{workload="slurm/17"} 0
            memwarden_training_ooms_total{workload="slurm/17"} 1
        "#]],
    );
    let last = r#"{"type":"phase","t":1,"name":"forward","state":"end","seconds":25,"count":123}"#;
    world.send(&mut stream, &format!("{last}\n"));
    drop(stream);
    world.turn();
    pass(1);
    let (shown, timeline) = world.sample();
    let phases = "memwarden_training_phases_total{workload=\"slurm/17\",rank=\"3\",phase=\"forward\"} 123";
    assert!(
        shown.contains(phases) && !shown.contains("memwarden_training_ranks"),
        "its last series: {shown}"
    );
    check(
        &world.sample().0,
        expect![[r#"
            memwarden_training_ooms_total{workload="slurm/17"} 1
        "#]],
    );
    let events: Vec<String> = timeline
        .entries
        .iter()
        .map(|entry| {
            format!(
                "{} {:?} {}/{} {} {:?}",
                entry.sequence, entry.kind, entry.workload, entry.rank, entry.name, entry.step
            )
        })
        .collect();
    check(
        &events.join("\n"),
        expect![[r#"
            1 Start slurm/17/3 hello None
            2 FirstStep slurm/17/3 step Some(120)
            3 Event slurm/17/3 after eval Some(120)
            4 Oom slurm/17/3 oom Some(120)
            5 Checkpoint slurm/17/3 saving Some(120)
            6 Checkpoint slurm/17/3 saved Some(120)
            7 Checkpoint slurm/17/3 failed Some(120)
            8 Growth slurm/17/3 type torch.Tensor: 64000 more (90210 now), tensor with grad_fn fp32[64, 1024]: 8800 more (9000 now, 2.1 GiB more), open figure matplotlib: 300 more (420 now), line train.py:88: 524288000 more (734003200 now) Some(120)
            9 End slurm/17/3 end of stream Some(120)
        "#]],
    );
    assert!(!world.checkpoints_has_own());
}

#[test]
fn what_grows_inside_a_program_is_an_event_without_control_characters() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    let item = |name: &str, more: i64| {
        format!("{{\"what\":\"type\",\"name\":\"{name}\",\"now\":9,\"more\":{more}}}")
    };
    let evidence = |items: &[String]| {
        format!("{{\"type\":\"evidence\",\"seconds\":60,\"items\":[{}]}}\n", items.join(","))
    };
    let sized = item("a\\u001b[2Jb", 5).replace('}', ",\"more_bytes\":2048}");
    world.send(&mut stream, &evidence(&[sized, item("none", 0)]));
    let many: Vec<String> = (0..20).map(|number| item(&format!("t{number}"), 1)).collect();
    world.send(&mut stream, &evidence(&many));
    world.send(&mut stream, &evidence(&[item(&"x".repeat(257), 1)]));
    world.send(&mut stream, &evidence(&[]));
    let (_, timeline) = world.sample();
    let grown = timeline.entries.iter().filter(|entry| entry.kind == EntryKind::Growth);
    let grown: Vec<_> = grown
        .map(|entry| (entry.name.as_str(), entry.detail.as_ref().map_or("", |detail| detail.get())))
        .collect();
    assert_eq!(grown.len(), 3, "{grown:?}");
    assert_eq!(grown[2].0, "no Python object that was counted, so that native code holds it");
    assert_eq!(
        grown[0],
        (
            "type a?[2Jb: 5 more (9 now, 2.0 KiB more)",
            r#"{"items":[{"bytes":null,"more":5,"more_bytes":2048,"name":"a?[2Jb","now":9,"what":"type"}],"seconds":60.0}"#
        )
    );
    assert_eq!(grown[1].0.matches("more").count(), 4);
    assert_eq!(grown[1].1.matches("name").count(), 20);
}

#[test]
fn a_verdict_reaches_the_process_that_reads_verdicts() {
    use std::io::Read as _;

    use crate::model::fit::{Answer, Verdict};
    let mut world = World::new();
    let (mut reads, mut other) = (world.connect(), world.connect());
    world.send(&mut reads, "{\"type\":\"hello\",\"v\":1,\"verdicts\":true}\n");
    world.send(&mut other, HELLO);
    let answer = Answer {
        process: world.own,
        verdict: Verdict::Tight,
        text: "1 GiB is left".to_owned(),
        sequence: None,
    };
    for foreign in [true, false] {
        let process =
            ProcessKey { pid: answer.process.pid, start: answer.process.start + u64::from(foreign) };
        let mut batch = Batch::new();
        batch.facts = Facts { answers: vec![Answer { process, ..answer.clone() }], ..world.facts() };
        world.source.sample(now(), &mut batch).unwrap();
        assert!(batch.facts.answers.is_empty());
        let mut bytes = [0; 256];
        let read = reads.read(&mut bytes).unwrap_or(0);
        let shown = String::from_utf8_lossy(&bytes[..read]);
        let expected = r#"{"text":"1 GiB is left","type":"verdict","verdict":"tight"}"#;
        assert_eq!(shown.trim_end(), if foreign { "" } else { expected });
        assert!(other.read(&mut bytes).is_err(), "it does not read");
    }
}

#[test]
fn the_reason_of_an_end_is_reported() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    let bye = r#"{"type":"bye","reason":"MemoryError","end":"out_of_memory","resource":"host","limit":"data","limit_value":7,"phase":"backward"}"#;
    world.send(&mut stream, &format!("{bye}\n"));
    drop(stream);
    world.turn();
    // No sample has seen it connected.
    let facts = world.sample_facts();
    let rank = &facts.ranks[0];
    assert_eq!((rank.key, rank.workload.as_str(), rank.rank.as_str()), (Some(world.own), "slurm/17", "3"));
    let end = facts.timeline.entries.last().unwrap();
    assert_eq!((end.kind, end.name.as_str(), end.workload.as_str()), (EntryKind::End, "bye", "slurm/17"));
    assert!(world.sample_facts().ranks.is_empty());
    assert_eq!(
        end.detail.as_ref().unwrap().get(),
        r#"{"end":"out_of_memory","limit":"data","limit_value":7,"phase":"backward","reason":"MemoryError","resource":"host"}"#
    );
}

#[test]
fn a_checkpoint_is_requested_without_waiting() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    world.send(&mut stream, "{\"type\":\"checkpoint\",\"state\":\"saving\"}\n");
    let found = world.checkpoints.of(world.own).unwrap();
    assert_eq!(found.state, crate::model::checkpoint::CheckpointState::Saving);
    assert_eq!(found.heard_nanos, START * 1_000_000_000);
    let ranks = |world: &mut World| -> Vec<Option<String>> {
        let ranks = world.sample_facts().ranks;
        ranks.iter().map(|rank| rank.cannot_save.as_ref().map(ToString::to_string)).collect()
    };
    assert_eq!(ranks(&mut world), [None]);
    world.send(
        &mut stream,
        &HELLO.replace("\"v\":1", "\"v\":1,\"saves\":false,\"saves_reason\":\"a\\u001bb\""),
    );
    assert_eq!(ranks(&mut world), [Some("a?b".to_owned())]);
    world.send(&mut stream, &HELLO.replace("\"v\":1", "\"v\":1,\"saves\":true"));
    assert_eq!(ranks(&mut world), [None]);
    drop(stream);
    world.turn();
    assert!(!world.checkpoints_has_own());
}

#[test]
fn flops_have_their_convention_and_mfu_needs_a_known_peak() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.source.options.peak_flops.0 = vec![Override { name: "Thing 1".to_owned(), flops: 1e15 }];
    let hello = |device: &str| {
        format!(
            r#"{{"type":"hello","v":1,"rank":0,"world":8,"data_parallel":4,"sequence_length":4096,"precision":"bf16","devices":{{"0":{{"name":"{device}"}}}},"model":{{"kind":"llama","layers":32,"hidden":4096,"ffn":14336,"heads":32,"kv_heads":8,"head_dim":128,"vocab":128256,"gated":true,"parameters":8030261248,"trainable":8030261248}}}}"#
        ) + "\n"
    };
    world.send(&mut stream, &hello("Thing 1"));
    for step in 0..10 {
        let tokens = step * 10_000;
        world.send(&mut stream, &format!("{{\"type\":\"step\",\"step\":{step},\"tokens\":{tokens}}}\n"));
        pass(1);
    }
    let flops = |shown: &str| -> Vec<String> {
        shown
            .lines()
            .filter(|line| ["flops", "mfu"].iter().any(|word| line.contains(word)))
            .map(str::to_owned)
            .collect()
    };
    let shown = flops(&world.sample().0);
    check(
        &shown.join("\n"),
        expect![[r#"
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="full"} 257352007680000
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="causal"} 241245880320000
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="6n"} 240907837440000
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="hardware"} 257352007680000
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="full"} 0.25735200768
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="causal"} 0.24124588032
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="6n"} 0.24090783744
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="hardware"} 0.25735200768
    "#]],
    );
    world.send(&mut stream, &hello("Thing 2"));
    assert_eq!(flops(&world.sample().0), shown[..4], "no peak is known of the other");
    world.send(&mut stream, &hello("Thing 2").replace("llama", "falcon_h1"));
    let reason = "no formula is known for models of kind falcon_h1";
    let unknown = format!(
        "memwarden_training_flops_unknown_info{{workload=\"slurm/17\",rank=\"0\",reason=\"{reason}\"}} 1"
    );
    assert_eq!(flops(&world.sample().0), [unknown, shown[2].clone()]);
}
