//! Several charts as one.

use crate::chart::{Chart, TimeAxis};

/// Several charts as panels of one, on a common time axis.
pub fn together(mut charts: Vec<Chart>) -> Chart {
    if charts.len() == 1 {
        return charts.remove(0);
    }
    let time = charts.first().map(|chart| chart.time).unwrap_or_default();
    let same = charts.iter().all(|chart| chart.time == time);
    let mut whole = Chart { time: if same { time } else { TimeAxis::Elapsed }, ..Chart::default() };
    for mut chart in charts {
        if !same {
            from_its_start(&mut chart);
        }
        for mut panel in chart.panels {
            panel.title = if panel.title.is_empty() {
                chart.title.clone()
            } else {
                format!("{}: {}", chart.title, panel.title)
            };
            whole.panels.push(panel);
        }
    }
    whole
}

fn from_its_start(chart: &mut Chart) {
    let times = chart.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let first = times.map(|(time, _)| *time).fold(f64::INFINITY, f64::min);
    for panel in &mut chart.panels {
        panel.lines.iter_mut().flat_map(|line| &mut line.points).for_each(|point| point.0 -= first);
        panel.events.iter_mut().for_each(|event| event.t_s -= first);
        for band in &mut panel.bands {
            band.from_s -= first;
            band.to_s = band.to_s.map(|to| to - first);
        }
        if let Some(fan) = &mut panel.fan {
            fan.at_s -= first;
        }
    }
}
