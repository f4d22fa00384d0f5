//! What happened, written down outside of the database: one file a process, one line an event.
//!
//! A line is written by a single call before the process goes on, so a killed process has written all that it did before.
//! (The machine itself does not go down.) Only the last line of a file can be incomplete.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::plan::Call;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Event {
    /// A process began; its redrive clock is off by so much.
    Born { offset_ms: i64 },
    /// A task is about to be enqueued.
    Asked {
        call: Call,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        transaction: Option<Ending>,
    },
    /// It is durable.
    Acked { n: String, id: i64, existed: bool },
    /// It failed, or it is not known.
    Failed { n: String, error: String },
    /// Its transaction was rolled back as intended.
    RolledBack { n: String },
    /// A handler begins.
    Start { n: String, id: i64, version: i32, attempt: u32, owner: i64 },
    /// A handler is about to return, or was dropped.
    End { n: String, id: i64, version: i32, outcome: Outcome },
    /// A task was cancelled, or that was tried.
    Cancelled { n: String, id: i64, answer: String },
    /// A process looks for tasks of a lane in these shards from now on, under this number.
    Owns { number: i64, shards: Vec<u8> },
    /// The conductor did something to somebody.
    Fault { said: String },
    /// A process ended in good order.
    Stopped,
}

/// How a caller's transaction is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Commit,
    Rollback,
}

/// How an attempt ended, as its handler saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Success,
    Failure,
    RetryAfter,
    Panic,
    Snooze,
    Fatal,
    /// Its future was dropped: a timeout, or the node had to stop.
    Dropped,
}

/// An event, when, and by whom: `1.3` is node 1 in its third generation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Microseconds since 1970.
    pub t: u64,
    #[serde(skip)]
    pub by: String,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Debug)]
pub struct Ledger(File);

impl Ledger {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        Ok(Self(file.with_context(|| format!("opening {}", path.display()))?))
    }

    /// Writes an event down. Without its ledger a process must not go on: the checker would draw wrong conclusions.
    pub fn write(&self, event: Event) {
        let line = Line { t: clock::now(), by: String::new(), event };
        let written = serde_json::to_vec(&line).map_err(std::io::Error::other).and_then(|mut bytes| {
            bytes.push(b'\n');
            (&self.0).write_all(&bytes)
        });
        if let Err(e) = written {
            eprintln!("the ledger cannot be written: {e}");
            std::process::abort();
        }
    }
}

/// All lines of all ledgers in a directory, in the order of time.
pub fn read_all(dir: &Path) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(by) = name.strip_suffix(".ledger") {
            read(&path, by, &mut lines)?;
        }
    }
    lines.sort_by_key(|line| line.t);
    Ok(lines)
}

fn read(path: &Path, by: &str, lines: &mut Vec<Line>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path)?;
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let line: Line = serde_json::from_str(line).with_context(|| format!("{}: {line}", path.display()))?;
        lines.push(Line { by: by.to_owned(), ..line });
    }
    Ok(())
}
