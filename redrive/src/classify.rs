//! Which errors are worth trying again.
//!
//! An error has a [`Kind`]: a short dotted name such as `timeout`, `http.503` or an enum's variant name.
//! Its [`Class`] follows from the policy's two lists and, where they say nothing, from what is built in:
//!
//! | lists | which kinds retry |
//! | --- | --- |
//! | none | all but the built-in rejects |
//! | `no_retry_for` only | all but those, and nothing else is held against a kind |
//! | `retry_for` | only those, less what `no_retry_for` names too |

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Problems;

/// The name of a sort of error. A name in a list stands for itself and for all below it: `http` names
/// `http.503` too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Kind(Cow<'static, str>);

impl Kind {
    /// The attempt took longer than its time limit.
    pub const TIMEOUT: Self = Self::of("timeout");
    /// The target could not be reached.
    pub const CONNECT: Self = Self::of("connect");
    /// The handler panicked.
    pub const PANIC: Self = Self::of("panic");
    /// The result did not satisfy the success condition.
    pub const UNMET: Self = Self::of("unmet");
    /// The stored params could not be read back.
    pub const UNDECODABLE: Self = Self::of("undecodable");
    /// The stored params are encrypted with a key that is not here.
    pub const SEALED: Self = Self::of("sealed");
    /// The node died while it held the task.
    pub const CRASH: Self = Self::of("crash");
    /// An error that says nothing of itself.
    pub const ERROR: Self = Self::of("error");
    /// It asks for a slower pace.
    pub const SLOW_DOWN: Self = Self::of("slow_down");

    /// The longest name, in bytes.
    pub const MAX: usize = 100;

    /// A kind that is known when the program is written.
    pub const fn of(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }

    /// The kind of an HTTP answer: `http.503`.
    pub fn http(status: u16) -> Self {
        Self(Cow::Owned(format!("http.{status}")))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `self`, as a name in a list, stands for `kind`.
    ///
    /// ```
    /// # use redrive::Kind;
    /// assert!(Kind::of("http").covers(&Kind::http(503)));
    /// assert!(!Kind::of("http.50").covers(&Kind::http(503)));
    /// ```
    pub fn covers(&self, kind: &Self) -> bool {
        let rest = kind.0.strip_prefix(&*self.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    pub(crate) fn check(&self, field: &str, problems: &mut Problems) {
        let ok =
            (1..=Self::MAX).contains(&self.0.len()) && !self.0.contains(|c: char| c.is_whitespace() || c.is_control());
        problems
            .require(ok, field, || format!("{:?} must be a name of 1 to {} bytes without spaces", self.0, Self::MAX));
    }
}

impl From<String> for Kind {
    fn from(name: String) -> Self {
        Self(Cow::Owned(name))
    }
}

impl From<&'static str> for Kind {
    fn from(name: &'static str) -> Self {
        Self::of(name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is to be done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It may pass: try again under the policy.
    Retry,
    /// It will not pass: do not try again.
    Reject,
}

/// The class of a kind under a policy's lists. `no_retry_for` wins over `retry_for`.
///
/// ```
/// use redrive::{classify, Class, Kind};
///
/// let lists = |yes: &[&'static str], no: &[&'static str], kind| {
///     let names = |l: &[&'static str]| l.iter().map(|n| Kind::of(n)).collect::<Vec<_>>();
///     classify(&names(yes), &names(no), &kind)
/// };
/// assert_eq!(lists(&[], &[], Kind::of("Declined")), Class::Retry);
/// assert_eq!(lists(&[], &[], Kind::of("invalid_data")), Class::Reject);
/// assert_eq!(lists(&[], &[], Kind::http(503)), Class::Retry);
/// assert_eq!(lists(&[], &[], Kind::http(404)), Class::Reject);
/// assert_eq!(lists(&[], &["Declined"], Kind::of("Declined")), Class::Reject);
/// assert_eq!(lists(&["timeout"], &[], Kind::of("Declined")), Class::Reject);
/// assert_eq!(lists(&["http"], &["http.503"], Kind::http(503)), Class::Reject);
/// ```
pub fn classify(retry_for: &[Kind], no_retry_for: &[Kind], kind: &Kind) -> Class {
    let listed = |list: &[Kind]| list.iter().any(|name| name.covers(kind));
    let retry = match (retry_for.is_empty(), no_retry_for.is_empty()) {
        (true, true) => !is_builtin_reject(kind),
        (true, false) => !listed(no_retry_for),
        (false, _) => listed(retry_for) && !listed(no_retry_for),
    };
    if retry { Class::Retry } else { Class::Reject }
}

/// What no retry can mend: `no_permission`, `invalid_data`, and HTTP answers that say so
/// (a redirect that is not followed; 4xx other than 408, 425 and 429; 501; 505), or an address that must not be called.
fn is_builtin_reject(kind: &Kind) -> bool {
    match kind.as_str() {
        "no_permission" | "invalid_data" | "refused_address" | "too_many_redirects" => true,
        name => name.strip_prefix("http.").and_then(|s| s.parse().ok()).is_some_and(is_http_reject),
    }
}

fn is_http_reject(status: u16) -> bool {
    matches!(status, 300..=499 | 501 | 505) && !matches!(status, 408 | 425 | 429)
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What sort of error it was.
    pub kind: Kind,
    /// Whether it is worth trying again.
    pub class: Class,
    /// What it said, the whole chain of causes.
    pub message: String,
    /// The target asked not to be called before this much time has passed.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure to be tried again.
    pub fn retry(kind: impl Into<Kind>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), class: Class::Retry, message: message.into(), retry_after: None }
    }

    /// A failure that no retry will mend.
    pub fn reject(kind: impl Into<Kind>, message: impl Into<String>) -> Self {
        Self { class: Class::Reject, ..Self::retry(kind, message) }
    }

    /// The target asks for a slower pace; it may name a time for which it is to be left alone. No attempt is used up.
    pub fn slow_down(message: impl Into<String>, time: Option<Duration>) -> Self {
        Self { retry_after: time, ..Self::retry(Kind::SLOW_DOWN, message) }
    }

    /// Returns whether it is no failure but a wish for a slower pace: the kinds `slow_down` and `http.429`, and `http.503` if it
    /// names a time.
    pub fn is_slow_down(&self) -> bool {
        let is_named = || self.retry_after.is_some() && Kind::http(503).covers(&self.kind);
        [Kind::SLOW_DOWN, Kind::http(429)].iter().any(|kind| kind.covers(&self.kind)) || is_named()
    }

    /// Not before `delay` has passed: the next attempt waits at least that long.
    pub fn after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

/// An error that knows its kind. `#[derive(ErrorKind)]` gives an enum's variants their names as kinds.
pub trait ErrorKind {
    /// The kind of this error.
    fn kind(&self) -> Kind;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_kinds_of_source_4() {
        for kind in ["not_ready", "too_busy", "no_resource", "server_error", "timeout", "connect"] {
            assert_eq!(classify(&[], &[], &Kind::of(kind)), Class::Retry, "{kind}");
        }
        for kind in ["no_permission", "invalid_data", "refused_address", "too_many_redirects"] {
            assert_eq!(classify(&[], &[], &Kind::of(kind)), Class::Reject, "{kind}");
        }
    }

    #[test]
    fn http_answers_that_are_worth_a_retry() {
        for status in 300..=599 {
            let retries = matches!(status, 408 | 425 | 429) || (status >= 500 && !matches!(status, 501 | 505));
            let class = classify(&[], &[], &Kind::http(status));
            assert_eq!(class == Class::Retry, retries, "{status}");
        }
    }
}
