//! The episodes of the benchmark of outcomes.

use memwarden::model::series::Series;
use memwarden_lab::what_if::{Fate, Outcome, Policy, play};

use super::episodes::{Episode, SHAPES, Shape, episode, on_all_processors, policies, tallies};

const EPISODES: u64 = 100;

fn of(shape: Shape) -> impl Iterator<Item = Episode> {
    (0..10 * EPISODES).map(episode).filter(move |episode| episode.shape == shape).take(60)
}

fn under(policy: &Policy, episode: &Episode) -> Vec<Outcome> {
    let jobs: Vec<&Series> = episode.jobs.iter().collect();
    play(&jobs, episode.limit, policy, episode.assumed)
}

fn deaths(shape: Shape) -> usize {
    let dies = |episode: &Episode| {
        under(&Policy::Kernel, episode).iter().any(|outcome| outcome.fate == Fate::OomKilled)
    };
    of(shape).filter(dies).count()
}

#[test]
fn the_same_seed_gives_the_same_episodes_and_the_same_table() {
    let policies = policies().unwrap();
    let once = tallies(0..20, &policies);
    assert_eq!(once, tallies(0..20, &policies));
    assert_ne!(once, tallies(20..40, &policies));
    assert_eq!(once.iter().map(|of_shape| of_shape.len()).collect::<Vec<_>>(), [5; SHAPES.len()]);
    let cells = |all: &[Vec<super::episodes::Tally>]| -> Vec<String> {
        all.iter().flatten().map(super::episodes::Tally::cells).collect()
    };
    assert_eq!(cells(&once), cells(&on_all_processors(0..20, &policies)));
}

#[test]
fn each_shape_does_under_the_kernel_what_its_name_says() {
    for (shape, name) in SHAPES {
        let died = deaths(shape);
        match shape {
            Shape::Steady | Shape::WarmUp | Shape::Sawtooth | Shape::EvaluationPeaks => {
                assert_eq!(died, 0, "{name}");
            }
            Shape::Ramp | Shape::SavePeaks | Shape::NoHandler | Shape::SlowSave => {
                assert_eq!(died, 60, "{name}")
            }
            // The limit can be above the spike, and the neighbor can end before the ramp has grown.
            Shape::Spike | Shape::Neighbor => assert!((10..60).contains(&died), "{name}: {died}"),
        }
    }
}

#[test]
fn jobs_are_saved_only_where_they_handle_the_signal() {
    let policies = policies().unwrap();
    let tallies = tallies(0..EPISODES, &policies);
    for ((shape, name), of_shape) in SHAPES.iter().zip(&tallies) {
        for (place, tally) in of_shape.iter().enumerate() {
            let asks = place >= 3 && *shape != Shape::NoHandler;
            assert!(asks || tally.saved == 0, "{name}, {}: {tally:?}", policies[place].0);
            assert!(place > 0 || tally.needless + tally.unsaved == 0, "{name}: {tally:?}");
        }
        assert!(*shape == Shape::Neighbor || of_shape.iter().all(|tally| tally.bystanders == 0), "{name}");
    }
    let ramp = SHAPES.iter().position(|(shape, _)| *shape == Shape::Ramp).unwrap();
    assert!(tallies[ramp][3].saved > 0, "{:?}", tallies[ramp]);
}
