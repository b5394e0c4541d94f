//! How well memwarden, and what people use today, see memory exhaustion coming.
//!
//! `cargo bench --bench forecast_benchmark` prints the table over the traces in `traces/` and the simulated ones.
//! docs/measurements/benchmark-forecasts.md describes the columns and the options.
#![expect(clippy::print_stdout, reason = "a bench prints its result")]

mod ablation;
mod chart;
mod ends;
mod methods;
mod nulls;
mod real;
mod score;
mod simulate;
mod traces;

use std::path::{Path, PathBuf};

use ablation::Set;
use forecast::Rules;
use methods::{Assess, Method};
use score::{Case, EVERY, Judged, Label, Table};

/// The name of the set of real runs.
const REAL: &str = "real training runs";

const USAGE: &str = "\
usage: cargo bench --bench forecast_benchmark -- [OPTION...]

  --traces DIR      score the traces of a folder with labels.csv too; may be repeated
  --simulated N     the number of simulated series, 400 by default
  --seed N          the first seed of the simulated series, 0 by default
  --command WORDS   compare a command too; of its words, {file}, {limit}, {horizon} and {every} are replaced
  --only NAME       only methods whose name contains this
  --charts DIR      write a chart of each trace to a folder
  --per-trace       print a line for each trace
  --nulls N         the null tests, N series of each kind
  --ends            how soon the end of growth is seen
  --without NAME    what a rule buys: the columns without it, on all sets; may be repeated; \"all\" is every rule; \"a,b\" is both
  --real DIR        real training runs of another folder with labels.csv
  --real-chart FILE draw the false warnings on the real runs
  --build LOCAL     make the folder of real runs again, from copies of the repositories in its manifest.csv
";

/// What was asked for.
#[derive(Debug, Default)]
struct Asked {
    traces: Vec<PathBuf>,
    simulated: u64,
    seed: u64,
    commands: Vec<String>,
    only: String,
    charts: Option<PathBuf>,
    per_trace: bool,
    nulls: Option<u64>,
    ends: bool,
    without: Vec<String>,
    real: PathBuf,
    real_chart: Option<PathBuf>,
    build: Option<PathBuf>,
}

fn asked() -> Result<Asked, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/forecast_benchmark");
    let mut asked = Asked { simulated: 400, real: here.join("runs"), ..Asked::default() };
    asked.traces.push(here.join("traces"));
    // Cargo adds `--bench`.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--traces" => asked.traces.push(value()?.into()),
            "--simulated" => asked.simulated = number(value()?)?,
            "--seed" => asked.seed = number(value()?)?,
            "--command" => asked.commands.push(value()?),
            "--only" => asked.only = value()?,
            "--charts" => asked.charts = Some(value()?.into()),
            "--per-trace" => asked.per_trace = true,
            "--nulls" => asked.nulls = Some(number(value()?)?),
            "--ends" => asked.ends = true,
            "--without" => asked.without.push(value()?),
            "--real" => asked.real = value()?.into(),
            "--real-chart" => asked.real_chart = Some(value()?.into()),
            "--build" => asked.build = Some(value()?.into()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(asked)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked = asked()?;
    if let Some(count) = asked.nulls {
        nulls::print(count);
        return Ok(());
    }
    if asked.ends {
        ends::print();
        return Ok(());
    }
    if let Some(local) = &asked.build {
        return real::build(local, &asked.real);
    }
    if !asked.without.is_empty() {
        return without(&asked);
    }
    let mut methods = methods::all();
    methods.extend(asked.commands.iter().map(|words| methods::command(words)));
    methods.retain(|method| method.name.contains(&asked.only));
    let mut sets: Vec<(String, Vec<Case>)> = Vec::new();
    for folder in asked.traces.iter().filter(|folder| folder.join("labels.csv").exists()) {
        sets.push((folder.display().to_string(), traces::load(folder)));
    }
    if asked.simulated > 0 {
        let seeds = asked.seed..asked.seed + asked.simulated;
        sets.push(("simulated".to_owned(), seeds.map(simulate::simulated).collect()));
    }
    sets.push((REAL.to_owned(), real::load(&asked.real)));
    for (name, cases) in &sets {
        println!("{} traces: {name}", cases.len());
        let (mut tables, mut false_warnings) = (Vec::new(), Vec::new());
        for method in &methods {
            let judged = judged(&method.assess, cases);
            if asked.per_trace {
                per_trace(method, &judged);
            }
            if let (Some(file), true) = (&asked.real_chart, name == REAL) {
                false_warnings
                    .push((method.name.as_str(), judged.iter().map(|(judged, _)| judged.clone()).collect()));
                std::fs::write(file, chart::false_warnings(&false_warnings))?;
            }
            tables.push((method.name.as_str(), score::table(&judged.iter().collect::<Vec<_>>())));
        }
        print(&tables);
        if let (Some(folder), Some(method)) = (&asked.charts, methods.first()) {
            std::fs::create_dir_all(folder)?;
            for case in cases {
                let drawn = chart::draw(case, &(method.assess)(case));
                std::fs::write(folder.join(format!("{}.svg", case.name)), drawn)?;
            }
        }
    }
    Ok(())
}

/// Minimum number of samples of a real series by which rules are judged.
const LEAST_REAL: usize = 60;

/// Prints what rules buy.
fn without(asked: &Asked) -> Result<(), Box<dyn std::error::Error>> {
    let every = asked.without.iter().any(|name| name == "all");
    let names: Vec<&str> =
        if every { Rules::NAMES.to_vec() } else { asked.without.iter().map(String::as_str).collect() };
    if let Some(name) = names.iter().find(|name| ablation::without(name).is_none()) {
        return Err(format!("there is no rule {name}; the rules are {}", Rules::NAMES.join(", ")).into());
    }
    let mut sets = Vec::new();
    for folder in &asked.traces {
        sets.push(Set::Cases(folder.display().to_string(), traces::load(folder)));
    }
    let healthy = |case: &Case| case.label == Label::Flat && case.rows.len() >= LEAST_REAL;
    let real = real::load(&asked.real).into_iter().filter(healthy);
    sets.push(Set::Cases("real".to_owned(), real.map(|case| Case { every: EVERY, ..case }).collect()));
    if asked.simulated > 0 {
        sets.extend(ablation::simulated(asked.simulated, asked.seed));
    }
    ablation::print(&sets, &names);
    Ok(())
}

/// The judgments of a method on all cases, and on the healthy ones with the limit directly above their maximum.
fn judged(assess: &Assess, cases: &[Case]) -> Vec<(Judged, Option<Judged>)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = cases.len().div_ceil(threads).max(1);
    let judge = |case: &Case| score::judge(case, &assess(case));
    let both = |case: &Case| (judge(case), case.near_limit().map(|near| judge(&near)));
    std::thread::scope(|scope| {
        let work = |cases: &[Case]| cases.iter().map(both).collect::<Vec<_>>();
        let parts: Vec<_> = cases.chunks(part).map(|cases| scope.spawn(move || work(cases))).collect();
        parts.into_iter().flat_map(|part| part.join().expect("a method does not panic")).collect()
    })
}

fn per_trace(method: &Method, judged: &[(Judged, Option<Judged>)]) {
    for (judged, _) in judged {
        println!("{}: {}", method.name, judged.summary());
    }
    let near = judged.iter().filter_map(|(_, near)| near.as_ref());
    for judged in near.filter(|judged| judged.false_warn.contains(&true)) {
        let wrong = judged.false_warn.iter().filter(|warned| **warned).count();
        println!(
            "{}: {} near its limit: {wrong} of {} warn",
            method.name,
            judged.name,
            judged.false_warn.len()
        );
    }
}

/// One row for each method.
fn print(tables: &[(&str, Table)]) {
    let widest = tables.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let Some((_, first)) = tables.first() else { return };
    let names: String = first.columns.iter().map(|(name, _)| format!(" {name:>10}")).collect();
    println!("{:widest$}{names}", "");
    for (name, table) in tables {
        let values: String = table.columns.iter().map(|(_, value)| format!(" {value:>10.3}")).collect();
        println!("{name:widest$}{values}");
    }
    println!();
}
