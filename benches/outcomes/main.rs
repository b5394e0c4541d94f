//! What becomes of jobs under the kernel alone, under what people use today, and under memwarden.
//!
//! `cargo bench --bench outcomes` plays simulated episodes and prints the tables of docs/measurements/outcomes.md.
#![expect(clippy::print_stdout, reason = "a bench prints its result")]

mod episodes;
#[path = "../forecast_benchmark/score.rs"]
#[expect(dead_code, reason = "only the types of a series with a label are used")]
mod score;
#[path = "../forecast_benchmark/simulate.rs"]
#[expect(dead_code, reason = "only series of a given shape are used")]
mod simulate;

use episodes::{SHAPES, Tally};

const USAGE: &str = "\
usage: cargo bench --bench outcomes -- [OPTION...]

  --episodes N   the number of episodes, 2,000 by default; one in ten has each shape
  --seed N       the seed of the first episode, 0 by default
";

/// The seeds of the episodes.
fn asked() -> Result<std::ops::Range<u64>, String> {
    let (mut episodes, mut seed) = (2_000, 0);
    // Cargo adds `--bench`.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let wanted = match word.as_str() {
            "--episodes" => &mut episodes,
            "--seed" => &mut seed,
            _ => return Err(USAGE.to_owned()),
        };
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        *wanted = value.parse::<u64>().map_err(|_| format!("{word}: {value} is no number"))?;
    }
    let end = seed.checked_add(episodes).ok_or("--seed: too large")?;
    Ok(seed..end)
}

fn main() -> anyhow::Result<()> {
    let seeds = asked().map_err(anyhow::Error::msg)?;
    let policies = episodes::policies()?;
    let shapes = episodes::on_all_processors(seeds, &policies);
    let columns = Tally::COLUMNS;
    let line = "| ---: ".repeat(columns.split('|').count());
    println!("| policy | {columns} |\n| --- {line}|");
    for (place, (name, _)) in policies.iter().enumerate() {
        let mut all = Tally::default();
        shapes.iter().for_each(|policies| all.join(policies[place].clone()));
        println!("| {name} | {} |", all.cells());
    }
    println!("\n| shape | policy | {columns} |\n| --- | --- {line}|");
    for ((_, shape), tallies) in SHAPES.iter().zip(&shapes) {
        for ((name, _), tally) in policies.iter().zip(tallies) {
            println!("| {shape} | {name} | {} |", tally.cells());
        }
    }
    Ok(())
}
