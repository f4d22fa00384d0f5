//! The steps of a saga as a drawing: boxes in layers from left to right, a step to the right of all that it waits for. Colours are
//! the style sheet's; each state has a mark and a word beside its colour.

use std::fmt::Write as _;

use super::html::{Html, escape};

const WIDTH: usize = 176;
const HEIGHT: usize = 56;
const GAP: usize = 44;
const ROW: usize = 18;
/// Letters that fit in a box; others may be wider, and count twice.
const FITS: usize = 15;

/// A step.
pub(super) struct Step<'s> {
    pub(super) name: &'s str,
    /// The steps that it waits for, by their names.
    pub(super) after: &'s [String],
    /// `pending`, `running`, …: a class of the style sheet.
    pub(super) state: &'s str,
    /// The same for people.
    pub(super) word: &'s str,
    /// What only waits has round ends.
    pub(super) waits: bool,
    pub(super) pivot: bool,
}

/// Where a step stands: its layer, and its place in it.
type Place = (usize, usize);

/// The layers, and within each the steps near to what they wait for.
fn places(steps: &[Step<'_>]) -> Vec<Place> {
    let index = |name: &String| steps.iter().position(|step| step.name == name);
    let above: Vec<Vec<usize>> = steps.iter().map(|step| step.after.iter().filter_map(index).collect()).collect();
    let mut layers = vec![0; steps.len()];
    // One round more than there are steps is enough, also for a definition that is not valid.
    for _ in 0..steps.len() {
        for (i, above) in above.iter().enumerate() {
            let layer = above.iter().filter_map(|j| layers.get(*j)).map(|layer| layer + 1).max().unwrap_or(0);
            layers.get_mut(i).into_iter().for_each(|own| *own = layer.min(steps.len()));
        }
    }
    let mut places = vec![(0, 0); steps.len()];
    for layer in 0..=layers.iter().copied().max().unwrap_or(0) {
        let mut here: Vec<usize> = (0..steps.len()).filter(|i| layers.get(*i) == Some(&layer)).collect();
        let middle = |i: &usize| {
            let above = above.get(*i).map(Vec::as_slice).unwrap_or_default();
            let sum: usize = above.iter().filter_map(|j| places.get(*j)).map(|(_, row)| row * 100).sum();
            sum / above.len().max(1)
        };
        here.sort_by_key(middle); // a stable sort: else as they are defined
        for (row, i) in here.into_iter().enumerate() {
            places.get_mut(i).into_iter().for_each(|place| *place = (layer, row));
        }
    }
    places
}

/// The drawing. `said` is for those who do not see it: a table beside it says the same.
pub(super) fn drawn(steps: &[Step<'_>], said: &str) -> Html {
    let places = places(steps);
    let layers = places.iter().map(|(layer, _)| layer + 1).max().unwrap_or(1);
    let in_layer = |layer| places.iter().filter(|(of, _)| *of == layer).count();
    let rows = (0..layers).map(in_layer).max().unwrap_or(1).max(1);
    let (width, height) = (layers * (WIDTH + GAP) - GAP + 4, rows * (HEIGHT + ROW) - ROW + 4);
    let corner = |(layer, row): Place| {
        let spare = (rows - in_layer(layer).min(rows)) * (HEIGHT + ROW) / 2; // lower layers stand in the middle
        (2 + layer * (WIDTH + GAP), 2 + spare + row * (HEIGHT + ROW))
    };
    let said = escape(said);
    let mut svg = format!(
        "<svg class=\"graph\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{said}\">"
    );
    for (step, place) in steps.iter().zip(&places) {
        let to = corner(*place);
        let before = steps.iter().zip(&places).filter(|(other, _)| step.after.iter().any(|name| name == other.name));
        before.for_each(|(_, from)| arrow(&mut svg, corner(*from), to));
    }
    for (step, place) in steps.iter().zip(&places) {
        boxed(&mut svg, step, corner(*place));
    }
    Html(svg + "</svg>")
}

fn arrow(svg: &mut String, (x1, y1): (usize, usize), (x2, y2): (usize, usize)) {
    let (x1, y1, x2, y2) = (x1 + WIDTH, y1 + HEIGHT / 2, x2 - 7, y2 + HEIGHT / 2);
    let bend = (x2.saturating_sub(x1) / 2).min(GAP);
    _ = write!(svg, "<path class=\"edge\" d=\"M{x1} {y1}C{} {y1} {} {y2} {x2} {y2}\"/>", x1 + bend, x2 - bend);
    _ = write!(svg, "<path class=\"tip\" d=\"M{} {y2}l-8 -4v8z\"/>", x2 + 7);
}

fn boxed(svg: &mut String, step: &Step<'_>, (x, y): (usize, usize)) {
    let round = if step.waits { HEIGHT / 2 } else { 8 };
    let (state, name, word) = (step.state, escape(step.name), escape(step.word));
    _ = write!(
        svg,
        "<g class=\"step {state}\"><title>{name}: {word}</title>\
         <rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"{round}\"/>"
    );
    if step.pivot {
        // The point of no return: a second line.
        let (x, y, w, h) = (x + 3, y + 3, WIDTH - 6, HEIGHT - 6);
        _ = write!(svg, "<rect class=\"pivot\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"6\"/>");
    }
    _ = write!(svg, "<path class=\"mark\" d=\"M{} {}{}\"/>", x + 24, y + HEIGHT / 2, mark(state));
    let (x, shown) = (x + 42, escape(&cut(step.name)));
    _ = write!(svg, "<text class=\"name\" x=\"{x}\" y=\"{}\">{shown}</text>", y + 24);
    _ = write!(svg, "<text x=\"{x}\" y=\"{}\">{word}</text></g>", y + 42);
}

/// A mark around a point.
fn mark(state: &str) -> &'static str {
    match state {
        "done" | "confirmed" => "m-7 0l5 6l9 -11",
        "refused" | "unknown" | "undo_failed" => "m-6 -6l12 12m0 -12l-12 12",
        "undone" => "m7 6h-8a5 5 0 0 1 0 -10h6m-3 -4l-4 4l4 4",
        "skipped" => "m-7 0h14",
        "running" | "confirming" => "m-5 -7l11 7l-11 7z",
        "undoing" => "m5 -7l-11 7l11 7z",
        _ => "m-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0",
    }
}

fn cut(name: &str) -> String {
    let width = |c: char| if c.is_ascii() { 1 } else { 2 };
    if name.chars().map(width).sum::<usize>() <= FITS {
        return name.to_owned();
    }
    let mut room = FITS - 1;
    let fits = name.chars().take_while(|c| {
        let fits = room >= width(*c);
        room = room.saturating_sub(width(*c));
        fits
    });
    fits.collect::<String>() + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step<'s>(name: &'s str, after: &'s [String]) -> Step<'s> {
        Step { name, after, state: "pending", word: "waits", waits: false, pivot: false }
    }

    #[test]
    fn a_step_stands_right_of_all_that_it_waits_for() {
        let (a, ab) = (["a".to_owned()], ["a".to_owned(), "b".to_owned()]);
        let steps = [step("c", &ab), step("b", &a), step("a", &[]), step("d", &[]), step("e", &a)];
        assert_eq!(places(&steps), [(2, 0), (1, 0), (0, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn a_circle_ends_and_a_name_is_text() {
        let (a, b) = (["a".to_owned()], ["<b>\"'&".to_owned()]);
        let svg = drawn(&[step("a", &b), step("<b>\"'&", &a)], "\"said\"").to_string();
        assert!(
            !svg.contains("<b>") && svg.contains("aria-label=\"&quot;said&quot;\"") && !svg.contains("style"),
            "{svg}"
        );
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        assert_eq!(
            (cut("book-the-hotel"), cut("book-the-very-long-name")),
            ("book-the-hotel".into(), "book-the-very-…".into())
        );
        assert_eq!(cut("预订酒店和航班以及租车"), "预订酒店和航班…");
    }
}
