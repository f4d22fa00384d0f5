//! Times, counts and durations as people read them. What is made here is HTML that needs no more escaping: all that goes into it
//! is numbers, and texts that [`escape`] has seen.

use std::fmt;
use std::time::Duration;

use askama::filters::HtmlSafe;
use redrive::Timestamp;
use redrive::store::{Count, Exactness, MOST_EXACT};

use super::words::{Words, fill};

/// HTML, to be shown as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Html(pub(super) String);

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Html {}

/// Text as text.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

/// How long ago, or how soon: a script makes that of it, and keeps it right. Without one it is the time in UTC.
pub(crate) fn ago(time: Timestamp) -> Html {
    stamped(time, "ago")
}

/// The time itself, in the reader's zone.
pub(crate) fn at(time: Timestamp) -> Html {
    stamped(time, "at")
}

/// Both.
pub(crate) fn at_and_ago(time: Timestamp) -> Html {
    stamped(time, "both")
}

fn stamped(time: Timestamp, shown: &str) -> Html {
    let text = time.to_string();
    let plain = text.get(..19).unwrap_or(&text).replace('T', " ");
    Html(format!("<time datetime=\"{text}\" data-show=\"{shown}\">{plain} UTC</time>"))
}

/// A number with its thousands apart.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count that says how sure it is.
pub(crate) fn count(count: Count) -> String {
    match count.exactness {
        Exactness::Exact => number(count.n),
        Exactness::AtLeast => format!("{}+", number(count.n)),
        Exactness::Estimate => format!("≈ {}", number(count.n)),
    }
}

/// A number that was counted no further than [`MOST_EXACT`].
pub(crate) fn up_to(n: u64) -> String {
    let exactness = if n >= MOST_EXACT { Exactness::AtLeast } else { Exactness::Exact };
    count(Count { n, exactness })
}

/// A duration in its two greatest units.
pub(crate) fn duration(time: Duration, w: &Words) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if ms < 1000 {
        return fill(w.in_ms, &[&ms]);
    }
    let units = [(86_400, w.in_days), (3_600, w.in_hours), (60, w.in_minutes), (1, w.in_seconds)]
        .map(|(s, word)| (s * 1000, word));
    let mut rest = ms;
    let mut parts = Vec::new();
    for (unit, word) in units {
        if rest >= unit && parts.len() < 2 {
            parts.push(fill(word, &[&(rest / unit)]));
        } else if !parts.is_empty() {
            break;
        }
        rest %= unit;
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::words::Lang;
    use super::*;

    #[test]
    fn numbers_and_durations_are_readable() {
        assert_eq!([number(7), number(1_000), number(1_234_567)], ["7", "1,000", "1,234,567"]);
        let said = |ms| duration(Duration::from_millis(ms), Lang::En.words());
        assert_eq!([said(5), said(1_000), said(90_000), said(86_400_000)], ["5 ms", "1 s", "1 min 30 s", "1 d"]);
        assert_eq!([said(3_600_000 + 5_000), said(90_061_000)], ["1 h", "1 d 1 h"]);
        assert_eq!([up_to(99_999), up_to(100_000)], ["99,999", "100,000+"]);
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(escape("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
        let time = Timestamp::from_millis(1_800_000_000_123);
        assert_eq!(
            ago(time).to_string(),
            "<time datetime=\"2027-01-15T08:00:00.123Z\" data-show=\"ago\">2027-01-15 08:00:00 UTC</time>"
        );
    }
}
