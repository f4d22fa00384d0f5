//! What an HTTP answer, or the kind of an error, says: whether what was called is well, and whether a retry is worth it.
//!
//! Whoever answers is well, even if the answer is no: a breaker that opened because of 404s would punish the target for its
//! callers' mistakes. An answer of 5xx, 408 or 425 is not well; 501 and 505 are, they only cannot do what was asked. 429, and
//! 503 that says when to come again, ask for a slower pace: that says nothing of the target's health.

use std::time::Duration;

use super::machine::Health;
use crate::classify::{Failure, Kind};
use crate::clock::Timestamp;

/// An HTTP answer, as far as it matters here.
///
/// ```
/// use redrive::resilience::{HttpAnswer, Health};
/// use redrive::{Class, Policy, Timestamp};
/// use std::time::Duration;
///
/// let health = |status| HttpAnswer::new(status).health();
/// assert_eq!([200, 404, 503].map(health), [Health::Success, Health::Success, Health::Failure]);
///
/// let busy = HttpAnswer::new(429).retry_after("30", Timestamp::EPOCH);
/// assert_eq!(busy.health(), Health::Ignore);
/// let failure = busy.failure().unwrap();
/// assert_eq!(failure.retry_after, Some(Duration::from_secs(30)));
/// assert_eq!(Policy::default().classify(&failure.kind), Class::Retry);
/// assert!(HttpAnswer::new(204).failure().is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Its status.
    pub status: u16,
    /// When to come again, if it says so.
    pub retry_after: Option<Duration>,
}

impl HttpAnswer {
    /// An answer of this status.
    pub const fn new(status: u16) -> Self {
        Self { status, retry_after: None }
    }

    /// With its header `Retry-After`: seconds, or a date. What cannot be read is as if it were not there.
    pub fn retry_after(self, header: &str, now: Timestamp) -> Self {
        Self { retry_after: parse_retry_after(header.trim(), now), ..self }
    }

    /// Whether what was called is well.
    pub fn health(&self) -> Health {
        match self.status {
            429 => Health::Ignore,
            503 if self.retry_after.is_some() => Health::Ignore,
            501 | 505 => Health::Success,
            408 | 425 | 500..=599 => Health::Failure,
            _ => Health::Success,
        }
    }

    /// The failure that it is, if it is one: from 400 on. Its kind, such as `http.503`, decides whether a retry is worth it.
    pub fn failure(&self) -> Option<Failure> {
        let failed = || Failure::retry(Kind::http(self.status), format!("answered {}", self.status));
        (self.status >= 400).then(|| Failure { retry_after: self.retry_after, ..failed() })
    }
}

fn parse_retry_after(header: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = header.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // The dates of HTTP are among those of mail, but for the name of their zone.
    let date = header.strip_suffix("GMT").map_or_else(|| header.to_owned(), |date| format!("{date}+0000"));
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(&date).ok()?;
    Some(Timestamp::from_millis(date.as_millisecond()).since(now))
}

impl Health {
    /// What a failure of this kind says about what was called. Only what looks like an outage (it cannot be reached, does not answer
    /// in time, or says itself that it is not well) is held against it.
    ///
    /// ```
    /// # use redrive::{Kind, resilience::Health};
    /// assert_eq!(Health::of_failure(&Kind::TIMEOUT), Health::Failure);
    /// assert_eq!(Health::of_failure(&Kind::http(503)), Health::Failure);
    /// assert_eq!(Health::of_failure(&Kind::http(404)), Health::Success); // it answered
    /// assert_eq!(Health::of_failure(&Kind::of("invalid_data")), Health::Ignore);
    /// ```
    pub fn of_failure(kind: &Kind) -> Self {
        const OUTAGES: [&str; 8] =
            ["connect", "timeout", "dns", "tls", "server_error", "not_ready", "too_busy", "no_resource"];
        let status = kind.as_str().strip_prefix("http.").and_then(|status| status.parse().ok());
        match status {
            Some(status) => HttpAnswer::new(status).health(),
            None if OUTAGES.iter().any(|name| Kind::of(name).covers(kind)) => Self::Failure,
            None => Self::Ignore,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "1994-11-06T08:49:00Z".parse().unwrap();
        let read = |header| HttpAnswer::new(503).retry_after(header, now).retry_after.map(|time| time.as_secs());
        assert_eq!(read("120"), Some(120));
        assert_eq!(read(" Sun, 06 Nov 1994 08:49:37 GMT "), Some(37));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        assert_eq!([read("soon"), read(""), read("-1")], [None; 3]);
    }

    #[test]
    fn only_what_looks_like_an_outage_is_held_against_a_target() {
        for kind in ["connect.lost", "dns", "tls", "too_busy", "http.500", "http.503", "http.408", "http.599"] {
            assert_eq!(Health::of_failure(&Kind::of(kind)), Health::Failure, "{kind}");
        }
        for kind in ["http.400", "http.404", "http.501", "http.200"] {
            assert_eq!(Health::of_failure(&Kind::of(kind)), Health::Success, "{kind}");
        }
        for kind in ["http.429", "panic", "unmet", "undecodable", "Declined", "error", "connected", "no_permission"] {
            assert_eq!(Health::of_failure(&Kind::of(kind)), Health::Ignore, "{kind}");
        }
    }
}
