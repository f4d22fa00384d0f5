//! Curves as SVG, drawn here: lines over time, and the times at which a task was and will be tried. Colours are the style sheet's.

use std::fmt::Write as _;
use std::time::Duration;

use redrive::Timestamp;

use super::html::{Html, escape, number};

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 160.0;
const LEFT: f64 = 42.0;
const BOTTOM: f64 = 20.0;
const TOP: f64 = 10.0;

/// Numbers over time, oldest first, at equal distances.
pub(super) struct Curve {
    /// `in`, `done`, `failed`, `dead`: see the style sheet.
    pub(super) class: &'static str,
    /// Not a number: nothing is known of it, and nothing drawn.
    pub(super) points: Vec<f64>,
}

/// Curves over the same time. `said` is for those who do not see them.
pub(super) fn curves(curves: &[Curve], from: Timestamp, to: Timestamp, said: &str) -> Html {
    let most = curves.iter().flat_map(|curve| &curve.points).copied().fold(0.0, f64::max);
    let top = round_up(most);
    let mut svg = open(HEIGHT, said);
    for part in [0.0, 0.5, 1.0] {
        let y = TOP + (1.0 - part) * (HEIGHT - TOP - BOTTOM);
        _ = write!(svg, "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        _ = write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            short(top * part)
        );
    }
    for (part, anchor) in [(0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end")] {
        let time = from + Duration::from_secs_f64(to.since(from).as_secs_f64() * part);
        svg += &tick(LEFT + part * (WIDTH - LEFT), HEIGHT - 4.0, anchor, time, false);
    }
    for curve in curves {
        let path = path(&curve.points, top);
        _ = write!(svg, "<path class=\"curve c-{}\" d=\"{path}\"/>", curve.class);
    }
    Html(svg + "</svg>")
}

fn open(height: f64, said: &str) -> String {
    format!("<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escape(said))
}

/// A time below: a script shows it in the reader's zone.
fn tick(x: f64, y: f64, anchor: &str, time: Timestamp, with_seconds: bool) -> String {
    let text = time.to_string();
    let (exact, end) = if with_seconds { (" data-exact=\"1\"", 19) } else { ("", 16) };
    let clock = text.get(11..end).unwrap_or_default();
    let ms = time.as_millis();
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" data-time=\"{ms}\"{exact}>{clock}</text>")
}

fn path(points: &[f64], top: f64) -> String {
    let step = (WIDTH - LEFT) / (points.len().max(2) - 1) as f64;
    let place = |(i, n): (usize, &f64)| {
        let (x, y) = (LEFT + i as f64 * step, TOP + (1.0 - n / top) * (HEIGHT - TOP - BOTTOM));
        format!("{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' })
    };
    points.iter().enumerate().filter(|(_, n)| !n.is_nan()).map(place).collect()
}

/// 1, 2 or 5 times a power of ten.
fn round_up(most: f64) -> f64 {
    let power = 10f64.powf(most.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= most).unwrap_or(power * 10.0).max(1.0)
}

fn short(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n if n < 10.0 && n.fract() > 0.0 => format!("{n:.1}"),
        n => number(n as u64),
    }
}

/// When a task was tried and will be, from left to right. Waits grow, so the distance from now is drawn by its logarithm.
pub(super) fn tries(past: &[Timestamp], coming: &[Timestamp], now: Timestamp, said: &str) -> Html {
    let (middle, y) = if past.is_empty() { (LEFT, 30.0) } else { (WIDTH * 0.4, 30.0) };
    let spread = |times: &[Timestamp]| times.iter().map(|t| distance(*t, now)).fold(1.0, f64::max);
    let (before, after) = (spread(past), spread(coming));
    let mut svg = open(64.0, said);
    _ = write!(svg, "<line class=\"rule\" x1=\"8\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>", WIDTH - 8.0);
    _ = write!(svg, "<line class=\"rule\" x1=\"{middle}\" x2=\"{middle}\" y1=\"12\" y2=\"48\"/>");
    for time in past {
        let x = middle - distance(*time, now) / before * (middle - 16.0);
        _ = write!(svg, "<circle class=\"dot bad\" cx=\"{x:.1}\" cy=\"{y}\" r=\"5\"/>");
    }
    let room = WIDTH - 16.0 - middle;
    let mut labelled = 0.0;
    // Minutes would be the same for all of them.
    let is_soon = coming.last().is_some_and(|last| last.since(now) < Duration::from_secs(1800));
    for time in coming {
        let x = middle + distance(*time, now) / after * room;
        _ = write!(svg, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y}\" r=\"5\"/>");
        if x - labelled > 72.0 {
            svg += &tick(x.min(WIDTH - 32.0), 58.0, "middle", *time, is_soon);
            labelled = x;
        }
    }
    Html(svg + "</svg>")
}

fn distance(time: Timestamp, now: Timestamp) -> f64 {
    (time.since(now).max(now.since(time)).as_secs_f64() + 1.0).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_at_a_round_number_that_is_enough() {
        for (most, top) in [(0.0, 1.0), (0.3, 1.0), (1.0, 1.0), (7.0, 10.0), (11.0, 20.0), (412.0, 500.0)] {
            assert!((round_up(most) - top).abs() < 1e-9, "{most}: {}", round_up(most));
        }
        assert_eq!([short(1.5), short(1500.0), short(20_000.0), short(2e6)], ["1.5", "1,500", "20k", "2.0M"]);
    }

    #[test]
    fn curves_have_no_style_of_their_own_and_no_markup_of_others() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let lines = [Curve { class: "done", points: vec![0.0, 3.0, 1.0] }];
        let svg = curves(&lines, now, now + Duration::from_secs(3600), "<b>\"").to_string();
        assert!(svg.contains("aria-label=\"&lt;b&gt;&quot;\"") && !svg.contains("style"), "{svg}");
        assert!(svg.contains("M42.0 140.0L221.0 62.0L400.0 114.0"), "{svg}");
        let dots = tries(&[now], &[now + Duration::from_secs(2), now + Duration::from_secs(600)], now, "x").to_string();
        assert_eq!(dots.matches("<circle").count(), 3);
    }
}
