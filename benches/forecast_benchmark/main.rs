mod score;
mod simulate;
use memwarden::analyzers::{
    leak::State,
    replay::{Options, replay},
};
use memwarden::model::series::Series;
use memwarden::recording::{cells::Rows, csv};
use score::*;
use std::path::Path;

fn ours(case: &Case) -> Vec<Said> {
    let series = Series { name: case.name.clone(), rows: case.rows.clone(), remarks: vec![] };
    let o = Options { limit: Some(case.limit), horizons: vec![HORIZON * case.unit()], every: EVERY };
    replay(&series, &o)
        .iter()
        .map(|r| {
            let a = &r.assessment;
            let inf = f64::INFINITY;
            Said {
                at: r.at,
                leak: a.leak == State::Leaking,
                tte: a.tte.map_or([inf; 3], |t| [t.p10, t.p50, t.p90.unwrap_or(inf)]),
                p: a.p_exhaustion[0].unwrap_or(0.0),
            }
        })
        .collect()
}
fn peaks(case: &Case) -> Vec<String> {
    let series = Series { name: case.name.clone(), rows: case.rows.clone(), remarks: vec![] };
    let o = Options { limit: Some(case.limit), horizons: vec![HORIZON * case.unit()], every: EVERY };
    let u = case.unit();
    replay(&series, &o)
        .iter()
        .map(|r| {
            r.assessment.peaks.map_or(String::new(), |p| {
                format!(
                    "n {} P {:.0}±{:.0} next {:.0} top {:.4}±{:.4} h {:.3} g {:.5}±{:.5}/u ",
                    p.count,
                    p.period_seconds / u,
                    p.period_deviation_seconds / u,
                    p.next_seconds / u,
                    p.top_bytes / case.limit,
                    p.deviation_bytes / case.limit,
                    p.height_bytes / case.limit,
                    p.growth_bytes_per_second * u / case.limit,
                    p.growth_error_bytes_per_second * u / case.limit
                )
            })
        })
        .collect()
}
fn ends() {
    use memwarden::analyzers::tracker::{Sample, Tracker};
    let only = std::env::var("EN").ok();
    for tex in ["quiet", "white", "saw", "peaks", "burst"] {
        for grows in [240.0, 420.0, 900.0, 1500.0, 2400.0, 3600.0, 7200.0, 14400.0] {
            if only.as_ref().is_some_and(|o| *o != format!("{tex}{grows}")) {
                continue;
            }
            let mut worst = [0.0f64; 3];
            let mut mean = [0.0f64; 3];
            let mut flaps = 0;
            let mut never = 0;
            for seed in 0..12u64 {
                let mut x = seed * 7919 + 12345;
                let mut rnd = move || {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    (x >> 11) as f64 / (1u64 << 53) as f64
                };
                let rate = 5e6 * (0.2 + rnd() * 2.0);
                let rise = rate * grows;
                let amp = match seed % 3 {
                    0 => 0.01,
                    1 => 0.04,
                    _ => 0.1,
                } * rise.min(5e9);
                let per = 10.0 + 60.0 * rnd();
                let mut t = Tracker::new();
                let mut last = [0.0f64; 3];
                let (mut was, mut f) = (false, 0);
                let mut ever = false;
                for s in 0..(grows as u32 + 2400) {
                    let at = s as f64;
                    let tx = match tex {
                        "white" => amp * (rnd() + rnd() + rnd() - 1.5),
                        "saw" => amp * (at / per).fract(),
                        "peaks" => {
                            if at % (per * 3.0) < per * 0.5 {
                                amp * 3.0
                            } else {
                                0.0
                            }
                        }
                        "burst" => {
                            if rnd() < 0.02 {
                                amp * 2.0
                            } else {
                                0.0
                            }
                        }
                        _ => amp * 0.01 * rnd(),
                    };
                    t.push(at, Sample { used: 10e9 + rate * at.min(grows) + tx, ..Sample::default() });
                    if s % 5 == 4 {
                        let a = t.assess(Some(10e9 + rise * 1.3 + amp * 3.0), &[300.0]);
                        let on = a.leak == State::Leaking;
                        if at < grows {
                            ever |= on;
                            was = on;
                        }
                        if at >= grows {
                            if on && !was {
                                f += 1;
                            }
                            was = on;
                            if on {
                                last[0] = at - grows;
                            }
                            if a.growth.is_some_and(|g| g.bytes_per_second > 0.2 * rate) {
                                last[1] = at - grows;
                            }
                            if a.tte.is_some() {
                                last[2] = at - grows;
                            }
                        }
                    }
                }
                never += (!ever) as u32;
                flaps += f;
                for i in 0..3 {
                    worst[i] = worst[i].max(last[i]);
                    mean[i] += last[i] / 12.0;
                }
            }
            println!(
                "{tex:6} grew {grows:6.0}: leaking {:5.0}/{:5.0} rate {:5.0}/{:5.0} tte {:5.0}/{:5.0} flaps {flaps} never {never}",
                mean[0], worst[0], mean[1], worst[1], mean[2], worst[2]
            );
        }
    }
}
fn load(folder: &Path) -> Vec<Case> {
    let labels = std::fs::read(folder.join("labels.csv")).unwrap();
    let mut labels = Rows::new(&labels);
    labels.next_row().unwrap();
    let number = |t: &str, o: f64| match t.parse::<f64>() {
        Ok(x) if x.is_finite() => x,
        _ => o,
    };
    let mut cases = Vec::new();
    while let Some((_, c)) = labels.next_row().unwrap() {
        let label = match &c[1] {
            "leak" | "oom" => Label::Growing,
            "flat" => Label::Flat,
            "bounded" => Label::Bounded,
            _ => continue,
        };
        let bytes = std::fs::read(folder.join(&c[0])).unwrap();
        cases.push(Case {
            name: c[0].to_owned(),
            origin: c[2].to_owned(),
            label,
            interval: number(&c[3], 0.5),
            limit: number(&c[5], 0.0).floor(),
            limit_at: number(&c[6], f64::INFINITY),
            onset: number(&c[7], 0.0),
            plateau: number(&c[8], 0.0),
            rows: csv::read(&c[0], &bytes).unwrap().rows,
        });
    }
    cases
}
fn run(cases: &[Case]) -> (Vec<Judged>, Vec<Judged>) {
    let half = cases.len().div_ceil(2).max(1);
    let parts: Vec<(Vec<Judged>, Vec<Judged>)> = std::thread::scope(|s| {
        let hs: Vec<_> = cases
            .chunks(half)
            .map(|c| {
                s.spawn(move || {
                    (
                        c.iter().map(|c| judge(c, &ours(c))).collect::<Vec<_>>(),
                        c.iter()
                            .filter_map(|c| c.near_limit())
                            .map(|c| judge(&c, &ours(&c)))
                            .collect::<Vec<_>>(),
                    )
                })
            })
            .collect();
        hs.into_iter().map(|h| h.join().unwrap()).collect()
    });
    parts.into_iter().fold((vec![], vec![]), |mut a, p| {
        a.0.extend(p.0);
        a.1.extend(p.1);
        a
    })
}
fn main() {
    if std::env::args().any(|a| a == "--bb") {
        println!("{:?}", memwarden::bb());
        return;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--ends") {
        ends();
        return;
    }
    let per = args.iter().any(|a| a == "-v");
    if let Some(name) = args.iter().position(|a| a == "--show").map(|i| args[i + 1].clone()) {
        let mut all = load(Path::new("/work/shared/data/traces"));
        all.extend((0..600).map(simulate::simulated));
        all.extend((10_000..10_800).map(simulate::simulated));
        let near = args.iter().any(|a| a == "--near");
        for c in all.iter().filter(|c| c.name.starts_with(&name)) {
            let c = if near { c.near_limit().unwrap() } else { c.clone() };
            let u = c.unit();
            println!(
                "{} limit {:.4e} at {:.0} u, onset {:.0} u",
                c.name,
                c.limit,
                c.limit_at / u,
                c.onset / u
            );
            for (s, pk) in ours(&c).into_iter().zip(peaks(&c)) {
                if s.at > c.limit_at {
                    break;
                }
                let used = c.rows.iter().rfind(|r| r.at <= s.at).unwrap().used;
                println!(
                    "{:8.0} left {:8.0} used {:.3} leak {} tte {:6.0} {:6.0} {:6.0} p {:.3} {pk}",
                    s.at / u,
                    (c.limit_at - s.at) / u,
                    used / c.limit,
                    s.leak as u8,
                    s.tte[0] / u,
                    s.tte[1] / u,
                    s.tte[2] / u,
                    s.p
                );
            }
        }
        return;
    }
    if let Some(i) = args.iter().position(|a| a == "--dump") {
        let d = Path::new(&args[i + 1]);
        std::fs::create_dir_all(d).unwrap();
        for c in (0..600).map(simulate::simulated) {
            let t: String = c.rows.iter().map(|r| format!("{},{}\n", r.at, r.used)).collect();
            std::fs::write(d.join(format!("{}.csv", c.name)), t).unwrap();
        }
        return;
    }
    if args.iter().any(|a| a == "--nulls") {
        for kind in simulate::NULLS {
            print!("{kind:10}");
            for n in [400u32, 1000, 2500] {
                let cases: Vec<Case> = (0..240).map(|s| simulate::null(kind, n, s)).collect();
                let (a, near) = run(&cases);
                let fw = near.iter().flat_map(|j| j.false_warn.iter()).filter(|x| **x).count() as f64
                    / near.iter().map(|j| j.false_warn.len()).sum::<usize>() as f64;
                print!(
                    "  {:5.3}/{:5.3}/{:.4}",
                    a.iter().filter(|j| !j.is_right()).count() as f64 / 240.0,
                    a.iter().map(|j| j.on()).sum::<f64>() / 240.0,
                    fw
                );
            }
            println!();
        }
        return;
    }
    let sets = [
        ("shared", load(Path::new("/work/shared/data/traces"))),
        ("dev", (0..600).map(simulate::simulated).collect()),
        ("held", (10_000..10_800).map(simulate::simulated).collect::<Vec<_>>()),
    ];
    let mut tables = vec![];
    for (name, cases) in &sets {
        let (a, n) = run(cases);
        if per {
            for j in a.iter() {
                println!(
                    "{name} {} {:44} on {:.2} err {:.2?} bands {:.2?} warned {:?} fw {}",
                    if j.is_right() { ' ' } else { 'X' },
                    j.name,
                    j.on(),
                    j.errors().unwrap_or_default(),
                    j.bands(),
                    j.warned,
                    j.false_warn.iter().filter(|x| **x).count()
                );
            }
            for j in n.iter() {
                let f = j.false_warn.iter().filter(|x| **x).count();
                if f > 0 {
                    println!("{name} near {:44} fw {f} of {}", j.name, j.false_warn.len());
                }
            }
        }
        if args.iter().any(|a| a == "-r") {
            print!("{name:8}");
            for b in 0..10 {
                let lo = b as f64 * 0.1;
                let v: Vec<_> = a
                    .iter()
                    .flat_map(|j| j.chances.iter())
                    .filter(|(p, _)| *p >= lo.max(1e-3) && *p < lo + 0.1 + (b == 9) as u8 as f64)
                    .collect();
                print!(
                    " {:.2}/{:.2}({})",
                    v.iter().map(|x| x.0).sum::<f64>() / v.len() as f64,
                    v.iter().filter(|x| x.1).count() as f64 / v.len() as f64,
                    v.len()
                );
            }
            let z = a.iter().flat_map(|j| j.chances.iter()).filter(|(p, y)| *p < 1e-3 && *y).count();
            println!(" zero came {z}");
        }
        tables.push(table(&a, &n));
    }
    println!("{:12}{}", "", sets.iter().map(|s| format!("{:>8}", s.0)).collect::<String>());
    for (i, (c, _)) in tables[0].columns.iter().enumerate() {
        println!("{c:12}{}", tables.iter().map(|t| format!("{:8.3}", t.columns[i].1)).collect::<String>());
    }
}
