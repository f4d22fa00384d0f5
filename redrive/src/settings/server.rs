//! How `redrive serve` answers HTTP. Programs that embed the engine have no use for it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;
use crate::error::Problems;

/// How the server answers: `[server]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServerSettings {
    /// Where it answers. What is not a loopback address is refused until there is a token. Default: `127.0.0.1:7070`.
    pub listen: SocketAddr,
    /// How long an answer may take, and how long the body of a request, as a whole. Bulks, streams of events and first tries while the
    /// caller waits have no such limit. When the server stops, what is under way has this time to end. Default: 30 s.
    #[serde(with = "duration")]
    pub request_timeout: Duration,
    /// How long a connection may be without a whole request: between two of them, and while the head of one arrives;
    /// and how long it may read nothing of its answer. Default: 75 s.
    #[serde(with = "duration")]
    pub idle_timeout: Duration,
    /// The most connections at once; more of them wait. It takes no more than half of the files that the process may open.
    /// Default: 10,000.
    pub max_connections: usize,
    /// The most bytes of a body. Default: 16 MiB.
    pub max_body: usize,
    /// How logs are written. Default: `text`.
    pub log: LogFormat,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            max_connections: 10_000,
            max_body: 16 * 1024 * 1024,
            log: LogFormat::default(),
        }
    }
}

impl ServerSettings {
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        for (limit, name) in [(self.request_timeout, "request_timeout"), (self.idle_timeout, "idle_timeout")] {
            duration::check(limit, name, &mut problems);
            problems.require(!limit.is_zero(), name, || "must be more than nothing".into());
        }
        problems.require((1..=1_000_000).contains(&self.max_connections), "max_connections", || {
            "must be from 1 to 1,000,000".into()
        });
        problems.require((1_024..=1 << 30).contains(&self.max_body), "max_body", || {
            "must be from 1 KiB to 1 GiB, in bytes".into()
        });
        problems
    }
}
