//! Properties of the whole guard over any history: what it asks of those who can act, and what it writes down of it.

use proptest::prelude::*;

use super::World;

/// Whoever was ever told to belong to the job.
const JOB: [u32; 3] = [10, 11, 12];

/// One stretch of a history: MiB of the 1,024 in use, how many of the job are there, and rounds of 100 ms.
fn stretch() -> impl Strategy<Value = (u64, usize, u32)> {
    let used = prop_oneof![0..900_u64, 900..1000_u64, 1000..1024_u64];
    (used, 0..=JOB.len(), 1..80_u32)
}

/// Plays a history; what was asked of whom, in words.
fn play(more: &str, history: &[(u64, usize, u32)]) -> Vec<String> {
    let mut world = World::new(more, false);
    world.tell(&JOB, true);
    world.rounds(1);
    for (used, there, rounds) in history {
        world.tell(&JOB[..*there], false);
        world.uses(*used);
        world.rounds(*rounds);
    }
    world.notes.take()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn observing_signals_no_process(
        history in proptest::collection::vec(stretch(), 1..12),
        victims in proptest::sample::select(vec!["whole", "largest", "newest"]),
    ) {
        let notes = play(&format!(", mode: observe, victims: {victims}, cooldown: 1s"), &history);
        for note in notes {
            prop_assert!(!note.starts_with("enforce"), "{note}");
        }
    }

    /// Those who write down assert that each step is written before and after it, also across moves.
    #[test]
    fn only_the_job_is_signalled_and_each_step_has_its_pair(
        history in proptest::collection::vec(stretch(), 1..12),
        victims in proptest::sample::select(vec!["whole", "largest", "newest"]),
    ) {
        let notes = play(&format!(", victims: {victims}, term_grace: 1s, cooldown: 1s, checkpoint: {{grace: 1s}}"), &history);
        let mut asked = 0;
        for note in notes {
            let pid = note.split_once(" to pid ").or_else(|| note.split_once("which is pid "));
            if let Some((_, pid)) = pid {
                let pid = pid.split(',').next().unwrap().parse().unwrap();
                prop_assert!(JOB.contains(&pid), "{note}");
            }
            // A request goes to each of the job at most once in five minutes, which is longer than any history.
            asked += usize::from(note.contains("if it has a handler"));
            prop_assert!(!note.starts_with("observe"), "{note}");
        }
        prop_assert!(asked <= JOB.len(), "{asked} requests");
    }
}
