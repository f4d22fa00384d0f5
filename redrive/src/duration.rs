//! Durations in settings and JSON: `"200ms"`, `"2s"`, `"5m"`, `"1h 30m"`, `"7d"`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Problems;

/// The longest duration that makes sense in a policy: ten years.
pub(crate) const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);

const DAY: u64 = 24 * 3600;

/// As people write it, in days at the longest: a month is 30.44 of them, and 90 days would be `2months 29days 2h 52m 48s`.
struct Written(Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, seconds) = (self.0.as_secs() / DAY, self.0.as_secs() % DAY);
        let rest = Duration::new(seconds, self.0.subsec_nanos());
        let (is_whole, rest) = (rest.is_zero(), humantime::format_duration(rest));
        match (days, is_whole) {
            (0, _) => write!(f, "{rest}"),
            (1, true) => f.write_str("1day"),
            (1, false) => write!(f, "1day {rest}"),
            (_, true) => write!(f, "{days}days"),
            (_, false) => write!(f, "{days}days {rest}"),
        }
    }
}

pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&Written(*d))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(d)?;
    humantime::parse_duration(&text).map_err(|e| {
        serde::de::Error::custom(format!("{text:?} is not a duration such as \"200ms\", \"5m\" or \"1h 30m\": {e}"))
    })
}

/// At least a millisecond (what the databases store), at most ten years.
pub(crate) fn check(d: Duration, field: &str, problems: &mut Problems) {
    problems.require(d >= Duration::from_millis(1) && d <= LONGEST, field, || {
        format!("must be from 1ms to 3650days, is {}", Written(d))
    });
    problems.require(d.subsec_nanos().is_multiple_of(1_000_000), field, || "must be whole milliseconds".into());
}

#[derive(Serialize, Deserialize)]
struct Wrapped(#[serde(with = "crate::duration")] Duration);

/// An optional one.
pub(crate) mod option {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        d.map(Wrapped).serialize(s)
    }
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(d)?.map(|w| w.0))
    }
}

/// Several.
pub(crate) mod list {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(list: &[Duration], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(list.iter().copied().map(Wrapped))
    }
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Duration>, D::Error> {
        Ok(Vec::<Wrapped>::deserialize(d)?.into_iter().map(|w| w.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let cases = [
            (Duration::ZERO, "0s"),
            (Duration::from_millis(200), "200ms"),
            (Duration::from_secs(5400), "1h 30m"),
            (Duration::from_secs(DAY), "1day"),
            (Duration::from_secs(7 * DAY + 60), "7days 1m"),
            (Duration::from_secs(90 * DAY), "90days"),
            (LONGEST, "3650days"),
        ];
        for (duration, text) in cases {
            assert_eq!(serde_json::to_value(Wrapped(duration)).unwrap(), text);
            assert_eq!(serde_json::from_value::<Wrapped>(text.into()).unwrap().0, duration);
        }
    }
}
