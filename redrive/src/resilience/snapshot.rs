//! A breaker as people see it.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::config::Mode;
use super::events::as_text;
use super::machine::State;
use super::samples::Tally;
use crate::clock::Timestamp;

/// A breaker for people to look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Its name.
    #[serde(serialize_with = "as_text")]
    pub name: Arc<str>,
    /// Where it stands.
    pub state: State,
    /// Whether it holds calls back.
    pub mode: Mode,
    /// Since when it stands there.
    pub since: Timestamp,
    /// Until when it is open.
    pub open_until: Option<Timestamp>,
    /// How often it has opened without having been stable since.
    pub opens: u32,
    /// How often it has changed.
    pub generation: i64,
    /// Calls that were rejected; where it only observes, that would have been.
    pub rejected: u64,
    /// The probes of a half-open one.
    pub probes: ProbeCounts,
    /// What its rules have counted of late; while it is not closed, nothing is added.
    pub rules: Vec<Tally>,
}

/// The probes of a half-open breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProbeCounts {
    /// Calls that are under way.
    pub out: usize,
    /// Those that succeeded.
    pub succeeded: u32,
    /// Those that failed.
    pub failed: u32,
    /// How many must succeed for it to close.
    pub needed: u32,
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} since {}", self.name, self.state, self.since)?;
        if let Some(until) = self.open_until {
            write!(f, " until {until}, {} in a row", self.opens)?;
        }
        if self.state == State::HalfOpen {
            let p = &self.probes;
            write!(f, ", {} of {} probes succeeded, {} under way", p.succeeded, p.needed, p.out)?;
        }
        if self.mode == Mode::Observe {
            f.write_str(", observing only")?;
        }
        write!(f, "; {} rejected", self.rejected)?;
        self.rules.iter().try_for_each(|rule| write!(f, "; {rule}"))
    }
}
