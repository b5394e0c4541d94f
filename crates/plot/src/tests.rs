//! Charts as wholes.

use proptest::prelude::*;

use super::picture::Shape;
use super::*;
use memwarden_model::outlook::Tte;
use memwarden_model::printable::is_hidden;

fn line(name: &str, points: impl IntoIterator<Item = (f64, Option<f64>)>) -> Line {
    Line { name: name.to_owned(), points: points.into_iter().collect() }
}

impl Layer {
    /// Every text with the room it takes, those of groups too.
    pub(super) fn texts(&self) -> Vec<&Text> {
        let mut found = Vec::new();
        for shape in &self.shapes {
            match shape {
                Shape::Text(text) => found.push(text),
                Shape::Group { layer, .. } => found.extend(layer.texts()),
                _ => {}
            }
        }
        found
    }
}

/// No text of a picture lies on another or leaves it.
#[track_caller]
fn assert_legible(picture: &Picture) {
    let texts = picture.layer.texts();
    let whole = Rect::new(0.0, 0.0, f64::from(picture.width), f64::from(picture.height));
    for (at, one) in texts.iter().enumerate() {
        let bounds = one.bounds();
        assert!(
            bounds.x >= whole.x
                && bounds.right() <= whole.right()
                && bounds.y >= 0.0
                && bounds.bottom() <= whole.bottom(),
            "{one:?} leaves the picture"
        );
        for two in &texts[..at] {
            assert!(!bounds.overlaps(two.bounds()), "{:?} lies on {:?}", one.content, two.content);
        }
    }
}

prop_compose! {
    fn any_line()(
        name in "\\PC{0,40}",
        points in proptest::collection::vec((0.0..1e4, proptest::option::of(-1e3..1e12)), 0..80),
    ) -> Line {
        Line { name, points }
    }
}

prop_compose! {
    fn any_panel()(
        title in "\\PC{0,30}",
        unit in prop_oneof![Just(Unit::Bytes), Just(Unit::Ratio), Just(Unit::Seconds), Just(Unit::Other("W".to_owned()))],
        lines in proptest::collection::vec(any_line(), 0..12),
        limit in proptest::option::of((0.0..1e13, "\\PC{0,20}")),
        fan in proptest::option::of((0.0..2e4, 0.0..1e12, 0.1..1e6, 0.1..1e6, proptest::option::of(0.1..1e6))),
        marks in proptest::collection::vec((-1e3..2e4, "\\PC{0,40}", any::<bool>(), any::<bool>()), 0..20),
        fit: bool,
    ) -> Panel {
        let mut panel = Panel { title, unit, lines, ..Panel::default() };
        panel.limit = limit.map(|(value, name)| Limit { value, name });
        panel.fan = fan.map(|(at_s, from, p10, p50, p90)| Fan { at_s, from, limit: 1e12, tte: Tte { p10, p50, p90 } });
        panel.baseline = if fit { Baseline::Fit } else { Baseline::Zero };
        for (at_s, text, alarm, band) in marks {
            if band {
                panel.bands.push(Band { from_s: at_s, to_s: None, text, alarm });
            } else {
                panel.events.push(Event { t_s: at_s, text, alarm });
            }
        }
        panel
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_text_ever_lies_on_another(
        title in "\\PC{0,80}",
        subtitle in "\\PC{0,80}",
        utc: bool,
        panels in proptest::collection::vec(any_panel(), 0..4),
        width in 1_u32..1600,
        height in 1_u32..900,
    ) {
        let time = if utc { TimeAxis::Utc } else { TimeAxis::Elapsed };
        let picture = draw(&Chart { title, subtitle, time, panels }, width, height, &Theme::LIGHT);
        assert_legible(&picture);
        svg::render(&picture, is_hidden);
    }

    #[test]
    fn no_number_is_too_strange(
        points in proptest::collection::vec((any::<f64>(), proptest::option::of(any::<f64>())), 0..40),
        numbers: [f64; 6],
    ) {
        let [value, at_s, from, limit, p10, p50] = numbers;
        let panel = Panel {
            lines: vec![Line { name: "strange".to_owned(), points }],
            limit: Some(Limit { value, name: String::new() }),
            fan: Some(Fan { at_s, from, limit, tte: Tte { p10, p50, p90: None } }),
            events: vec![Event { t_s: at_s, text: "strange".to_owned(), alarm: true }],
            bands: vec![Band { from_s: at_s, to_s: Some(p50), text: "strange".to_owned(), alarm: false }],
            ..Panel::default()
        };
        let chart = Chart { panels: vec![panel], ..Chart::default() };
        let drawn = svg::render(&draw(&chart, 800, 400, &Theme::DARK), is_hidden);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf\""), "{drawn}");
    }
}

#[test]
fn an_empty_chart_reports_it() {
    let chart = Chart {
        panels: vec![Panel { lines: vec![line("used", [])], ..Panel::default() }],
        ..Chart::default()
    };
    let picture = draw(&chart, 600, 300, &Theme::LIGHT);
    let texts: Vec<&str> = picture.layer.texts().iter().map(|text| text.content.as_str()).collect();
    assert!(texts.contains(&"no samples") && texts.contains(&"used (no samples)"), "{texts:?}");
}

/// A chart with everything, whose picture is kept.
fn full() -> Chart {
    const GIB: f64 = 1_073_741_824.0;
    let times = (0..60_u32).filter(|at| !(20..30).contains(at)).map(f64::from);
    let used = times.clone().map(|at| (at * 10.0, Some((4.0 + at * 0.1) * GIB)));
    let reserved = times.map(|at| (at * 10.0, Some(11.0 * GIB)));
    let memory = Panel {
        title: "rank 0".to_owned(),
        lines: vec![line("allocated", used), line("reserved", reserved)],
        limit: Some(Limit { value: 16.0 * GIB, name: "capacity".to_owned() }),
        fan: Some(Fan {
            at_s: 590.0,
            from: 9.9 * GIB,
            limit: 16.0 * GIB,
            tte: Tte { p10: 400.0, p50: 600.0, p90: Some(800.0) },
        }),
        bands: vec![Band { from_s: 300.0, to_s: None, text: "leaking since 5 min".to_owned(), alarm: true }],
        events: vec![
            Event { t_s: 100.0, text: "checkpoint saved".to_owned(), alarm: false },
            Event { t_s: 105.0, text: "evaluation".to_owned(), alarm: false },
        ],
        ..Panel::default()
    };
    let steps = (0..60_u32).map(|at| (f64::from(at) * 10.0, Some(0.25 + f64::from(at % 7) * 0.01)));
    let steps = Panel {
        unit: Unit::Seconds,
        lines: vec![line("step time", steps)],
        baseline: Baseline::Fit,
        ..Panel::default()
    };
    Chart {
        title: "trainer & co".to_owned(),
        subtitle: "risk high".to_owned(),
        time: TimeAxis::Elapsed,
        panels: vec![memory, steps],
    }
}

#[test]
fn a_full_chart_is_drawn_as_ever() {
    let picture = draw(&full(), 900, 600, &Theme::LIGHT);
    assert_legible(&picture);
    let texts: Vec<&str> = picture.layer.texts().iter().map(|text| text.content.as_str()).collect();
    for part in [
        "trainer & co",
        "limit reached in 10 min (p10 7 min, p90 13 min)",
        "allocated (peak 9.90 GiB)",
        "no samples",
        "capacity 16 GiB",
        "leaking since 5 min",
        "checkpoint saved",
        "evaluation",
        "forecast →",
        "the value axis does not begin at zero",
    ] {
        assert!(texts.contains(&part), "{part:?} is not in {texts:?}");
    }
    expect_test::expect_file!["testdata/chart.svg"].assert_eq(&svg::render(&picture, is_hidden));
}

#[test]
fn a_line_is_broken_where_samples_are_missing() {
    let picture = draw(&full(), 900, 600, &Theme::LIGHT);
    let drawn = svg::render(&picture, is_hidden);
    let line = drawn.split("<g><title>allocated: ").nth(1).unwrap().split("</g>").next().unwrap();
    assert_eq!(line.matches("<polyline").count(), 2, "{line}");
}
