//! What is printed: tables for people, one JSON object a line for programs.
//!
//! What comes from elsewhere (an error's message, a name) is shown without its control characters: a target's answer must not
//! move the cursor of whoever looks at it. So [`line`] and [`aside`] print none, whatever they are given, and errors have none.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::time::Duration;

use comfy_table::Table;
use indicatif::HumanCount;
use jiff::tz::TimeZone;
use redrive::Timestamp;
use serde_json::Value;

/// How it is printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    pub(super) json: bool,
    pub(super) now: Timestamp,
}

/// A column: its head, and what is in it.
pub(super) type Column = (&'static str, fn(&Value, Timestamp) -> String);

/// How much of a text a table shows.
const LONGEST_CELL: usize = 60;

impl Out {
    /// A line for programs or for people.
    pub(super) fn say(self, json: &Value, text: impl Display) -> io::Result<()> {
        if self.json { line(json) } else { line(text) }
    }

    /// A table, or a line for each; `none` is for people if there are none.
    pub(super) fn list(self, items: &[Value], columns: &[Column], none: &str) -> io::Result<()> {
        if self.json {
            return items.iter().try_for_each(line);
        }
        if items.is_empty() {
            return line(none);
        }
        let mut table = Table::new();
        table.load_style(comfy_table::presets::ASCII_FULL_CONDENSED);
        table.set_header(columns.iter().map(|(head, _)| *head));
        for item in items {
            table.add_row(columns.iter().map(|(_, cell)| cell(item, self.now)));
        }
        line(table)
    }
}

/// Prints a line. An error if nobody listens any more.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", plain(&text.to_string()))
}

/// What is printed about something that is being done: that nobody listens any more (`| head`) is no reason to leave it half done, nor
/// to say that it went well.
pub(super) fn heard_or_not(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Says something beside the output. That it is not heard is no reason to stop.
pub(crate) fn aside(text: impl Display) {
    _ = writeln!(io::stderr().lock(), "{}", plain(&text.to_string()));
}

/// What a terminal would obey, but for ends of lines and tabs, as JSON writes it: so JSON says the same as before.
pub(super) fn plain(text: &str) -> String {
    let is_obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    let mut said = String::with_capacity(text.len());
    for c in text.chars() {
        match is_obeyed(c) {
            true => said += &format!("\\u{:04x}", u32::from(c)),
            false => said.push(c),
        }
    }
    said
}

/// Names and what they are, one under the other; those that are empty are left out.
pub(super) fn details(pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .try_for_each(|(name, text)| line(format!("{name:width$}  {text}")))
}

/// A field as text: empty if it is not there. `of` is its name, or its path (`task/id`).
pub(super) fn text(value: &Value, of: &str) -> String {
    match value.pointer(&format!("/{of}")) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => tame(text),
        Some(other) => tame(&other.to_string()),
    }
}

/// The same, cut to what a table can hold.
pub(super) fn short(value: &Value, of: &str) -> String {
    let text = text(value, of);
    match text.char_indices().nth(LONGEST_CELL) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Without what a terminal would obey.
fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A field that is a time.
pub(super) fn time(value: &Value, of: &str) -> Option<Timestamp> {
    value.pointer(&format!("/{of}"))?.as_str()?.parse().ok()
}

/// How long ago a field's time was, or in how long it will be.
pub(super) fn when(value: &Value, of: &str, now: Timestamp) -> String {
    time(value, of).map(|time| relative(time, now)).unwrap_or_default()
}

/// A field's time where the reader is, and how long ago that was.
pub(super) fn moment(value: &Value, of: &str, now: Timestamp) -> String {
    time(value, of).map(|time| format!("{} ({})", local(time), relative(time, now))).unwrap_or_default()
}

fn local(time: Timestamp) -> String {
    match jiff::Timestamp::from_millisecond(time.as_millis()) {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        Err(_) => time.to_string(),
    }
}

fn relative(time: Timestamp, now: Timestamp) -> String {
    if time > now { format!("in {}", span(time.since(now))) } else { format!("{} ago", span(now.since(time))) }
}

/// About how long: one unit is enough.
pub(super) fn span(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min", s / 60),
        s @ 3_600..172_800 => format!("{} h", s / 3_600),
        s => format!("{} d", s / 86_400),
    }
}

/// A number of rows, and how sure that is.
pub(super) fn count(value: &Value, of: &str) -> String {
    let n = HumanCount(value.pointer(&format!("/{of}/n")).and_then(Value::as_u64).unwrap_or(0));
    match text(value, &format!("{of}/exactness")).as_str() {
        "at_least" => format!("at least {n}"),
        "estimate" => format!("about {n}"),
        _ => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_told_as_people_do() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let ago = |s| relative(now - Duration::from_secs(s), now);
        assert_eq!([ago(0), ago(59), ago(60), ago(7_199)], ["0 s ago", "59 s ago", "1 min ago", "1 h ago"]);
        assert_eq!([ago(172_799), ago(172_800)], ["47 h ago", "2 d ago"]);
        assert_eq!(relative(now + Duration::from_secs(90), now), "in 1 min");
    }

    #[test]
    fn counts_say_how_sure_they_are() {
        let counted = |exactness| count(&json!({ "dead": { "n": 100_000, "exactness": exactness } }), "dead");
        assert_eq!(counted("exact"), "100,000");
        assert_eq!(counted("at_least"), "at least 100,000");
        assert_eq!(counted("estimate"), "about 100,000");
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_shown() {
        let value = json!({ "last_error": { "message": "\u{1b}[2Jgone\r\nboo" } });
        assert_eq!(text(&value, "last_error/message"), " [2Jgone  boo");
        assert_eq!(short(&json!({ "m": "漢".repeat(70) }), "m"), format!("{}…", "漢".repeat(60)));
        assert_eq!(plain("a\u{1b}[2J\tb\r\nc\u{9b}é"), "a\\u001b[2J\tb\\u000d\nc\\u009bé");
        let value = json!({ "m": "\u{1b}\u{7f}\u{9b}\n" });
        assert_eq!(serde_json::from_str::<Value>(&plain(&value.to_string())).unwrap(), value);
    }
}
