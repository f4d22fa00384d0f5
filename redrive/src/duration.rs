//! Durations in settings and JSON: `"200ms"`, `"2s"`, `"5m"`, `"1h 30m"`, `"7d"`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Problems;

/// The longest duration that makes sense in a policy: ten years.
pub(crate) const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);

pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&humantime::format_duration(*d))
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
        format!("must be from 1ms to 3650days, is {}", humantime::format_duration(d))
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
