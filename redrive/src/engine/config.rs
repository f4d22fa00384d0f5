//! How an engine is set up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;
use crate::error::{Problems, Result};

/// Settings of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Who this node says it is, for people. Default: the process id.
    pub name: String,
    /// How many tasks run at once on this node. Default: 1,000.
    pub concurrency: usize,
    /// How often the database is looked through for due tasks when nothing else asks for it. Default: 5 s.
    #[serde(with = "duration")]
    pub scan_interval: Duration,
    /// How often everything is looked through, whatever was seen before. Default: 10 s.
    #[serde(with = "duration")]
    pub sweep_interval: Duration,
    /// How often this node shows that it lives. Default: 2 s.
    #[serde(with = "duration")]
    pub beat_interval: Duration,
    /// After this long without a beat a node may be declared dead. Default: 10 s.
    #[serde(with = "duration")]
    pub lease: Duration,
    /// How much earlier than that it stops working by itself. Default: 2 s.
    #[serde(with = "duration")]
    pub margin: Duration,
    /// How many tasks that are due soon are kept in memory. Default: 1,000,000.
    pub prefetch: usize,
    /// How long a stop waits for running tasks before it gives them back. Default: 30 s.
    #[serde(with = "duration")]
    pub grace: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            name: format!("pid {}", std::process::id()),
            concurrency: 1_000,
            scan_interval: Duration::from_secs(5),
            sweep_interval: Duration::from_secs(10),
            beat_interval: Duration::from_secs(2),
            lease: Duration::from_secs(10),
            margin: Duration::from_secs(2),
            prefetch: 1_000_000,
            grace: Duration::from_secs(30),
        }
    }
}

impl EngineConfig {
    /// Whether these values go together; if not, all that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Problems::default();
        let p = &mut problems;
        p.require((1..=1_000_000).contains(&self.concurrency), "concurrency", || "must be from 1 to 1000000".into());
        p.require((1..=255).contains(&self.name.len()), "name", || "must be from 1 to 255 bytes".into());
        for (field, value) in [
            ("scan_interval", self.scan_interval),
            ("sweep_interval", self.sweep_interval),
            ("beat_interval", self.beat_interval),
            ("lease", self.lease),
            ("margin", self.margin),
        ] {
            crate::duration::check(value, field, p);
        }
        p.require(self.beat_interval.saturating_mul(2) <= self.lease.saturating_sub(self.margin), "lease", || {
            "must be longer than the margin by at least two beats: one lost beat must not stop the node".into()
        });
        problems.into_result()
    }
}
