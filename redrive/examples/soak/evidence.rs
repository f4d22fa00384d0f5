//! All that is known after a run: what the processes wrote down, what the witness in the database saw, and what is left in
//! the tables. Put in order, judged by nobody.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use crate::audit::{self, Fence, Join, Seen};
use crate::database::{Kind, Raw};
use crate::ledger::{self, Ending, Event, Line, Outcome};
use crate::plan::Call;
use crate::shares::Wait;

#[derive(Debug)]
pub struct Evidence {
    pub kind: Kind,
    pub lines: Vec<Line>,
    /// What the witness saw of each task, in order.
    pub seen: BTreeMap<i64, Vec<Seen>>,
    /// When a node was declared dead or left.
    pub fences: HashMap<i64, Fence>,
    /// When a node got its number.
    pub joins: HashMap<i64, Join>,
    /// The names of nodes: `node-1.3`.
    pub nodes: HashMap<i64, String>,
    /// Dead letters: reason and attempts.
    pub dead: HashMap<i64, (String, i64)>,
    /// The archive: how it ended.
    pub archive: HashMap<i64, String>,
    /// Still in the queue.
    pub left: HashSet<i64>,
    pub business: HashSet<String>,
    /// Keys that belong to no live task and do not expire.
    pub stray_keys: i64,
    /// What the conductor found wrong with the processes.
    pub complaints: Vec<String>,
    /// How long shards were not shared as they should be, if that was measured.
    pub waits: Vec<Wait>,
    /// By number.
    pub asks: BTreeMap<String, Ask>,
    /// By id, in the order of versions.
    pub attempts: HashMap<i64, Vec<Attempt>>,
    /// When a process began, and how far redrive's clock in it was off.
    pub births: HashMap<String, (u64, i64)>,
}

/// A task that was asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    pub t: u64,
    pub by: String,
    pub call: Call,
    pub key: Option<String>,
    pub transaction: Option<Ending>,
    pub answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Acked { id: i64, existed: bool },
    Failed,
    RolledBack,
}

/// An attempt, by the ledgers.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub n: String,
    pub version: i64,
    pub attempt: u32,
    pub owner: i64,
    pub by: String,
    pub start: u64,
    /// None: its process was killed.
    pub end: Option<(u64, Outcome)>,
}

impl Attempt {
    pub fn outcome(&self) -> Option<Outcome> {
        self.end.map(|(_, outcome)| outcome)
    }
}

impl Evidence {
    pub async fn collect(kind: Kind, ledgers: &Path, db: &mut Raw) -> anyhow::Result<Self> {
        let lines = ledger::read_all(ledgers)?;
        let mut seen: BTreeMap<i64, Vec<Seen>> = BTreeMap::new();
        for change in audit::read(db).await? {
            seen.entry(change.id).or_default().push(change);
        }
        let int = db.big_int();
        let fences = audit::read_fences(db).await?.into_iter().map(|fence| (fence.number, fence)).collect();
        let joins = audit::read_joins(db).await?.into_iter().map(|join| (join.number, join)).collect();
        let pairs = |rows: Vec<Vec<crate::database::Value>>| {
            rows.into_iter().filter_map(|row| Some((row[0].int()?, row[1].text().to_owned()))).collect()
        };
        let dead = db.rows(&format!("SELECT id, dead_reason, CAST(attempt_count AS {int}) FROM retry_dead")).await?;
        let dead = dead.iter().filter_map(|row| Some((row[0].int()?, (row[1].text().to_owned(), row[2].int()?))));
        let left = db.rows_of("task", "SELECT id FROM {table}").await?.iter().filter_map(|row| row[0].int()).collect();
        let business = db.rows("SELECT n FROM soak_business").await?;
        let mut evidence = Self {
            kind,
            seen,
            fences,
            joins,
            nodes: pairs(db.rows("SELECT number, name FROM redrive_node").await?),
            dead: dead.collect(),
            archive: pairs(db.rows_of("archive", "SELECT id, ended_as FROM {table}").await?),
            left,
            business: business.iter().map(|row| row[0].text().to_owned()).collect(),
            stray_keys: db.count("redrive_key WHERE expires_at IS NULL").await?,
            complaints: Vec::new(),
            waits: Vec::new(),
            asks: BTreeMap::new(),
            attempts: HashMap::new(),
            births: HashMap::new(),
            lines: Vec::new(),
        };
        lines.iter().for_each(|line| evidence.take(line));
        evidence.attempts.values_mut().for_each(|all| all.sort_by_key(|attempt| attempt.version));
        evidence.lines = lines;
        Ok(evidence)
    }

    fn take(&mut self, line: &Line) {
        let (t, by) = (line.t, line.by.clone());
        match line.event.clone() {
            Event::Born { offset_ms } => _ = self.births.insert(by, (t, offset_ms)),
            Event::Asked { call, key, transaction } => {
                self.asks.insert(call.n.clone(), Ask { t, by, call, key, transaction, answer: None });
            }
            Event::Acked { n, id, existed } => self.answer(&n, Answer::Acked { id, existed }),
            Event::Failed { n, .. } => self.answer(&n, Answer::Failed),
            Event::RolledBack { n } => self.answer(&n, Answer::RolledBack),
            Event::Start { n, id, version, attempt, owner } => {
                let attempt = Attempt { n, version: version.into(), attempt, owner, by, start: t, end: None };
                self.attempts.entry(id).or_default().push(attempt);
            }
            Event::End { id, version, outcome, .. } => {
                let all = self.attempts.entry(id).or_default();
                let ours = |a: &&mut Attempt| a.version == i64::from(version) && a.by == by && a.end.is_none();
                if let Some(attempt) = all.iter_mut().find(ours) {
                    attempt.end = Some((t, outcome));
                }
            }
            Event::Cancelled { .. } | Event::Owns { .. } | Event::Fault { .. } | Event::Stopped => {}
        }
    }

    fn answer(&mut self, n: &str, answer: Answer) {
        if let Some(ask) = self.asks.get_mut(n) {
            ask.answer = Some(answer);
        }
    }

    /// The call of a task, from the params that were inserted.
    pub fn call(&self, id: i64) -> Option<Call> {
        let first = self.seen.get(&id)?.first()?;
        serde_json::from_str(&first.params).ok()
    }

    /// The database user of a node: `node-1.3` works as `node_1`.
    pub fn user(&self, number: i64) -> Option<String> {
        let name = self.nodes.get(&number)?;
        Some(name.split('.').next()?.replace('-', "_"))
    }

    /// All that is known of a task, in the order of time.
    pub fn story(&self, id: Option<i64>, n: Option<&str>) -> String {
        let mut told: Vec<(u64, String)> = Vec::new();
        for line in self.lines.iter().filter(|line| line.event.is_about(id, n)) {
            let what = serde_json::to_string(&line.event).unwrap_or_default();
            told.push((line.t, format!("{:<9} {what}", line.by)));
        }
        for change in id.and_then(|id| self.seen.get(&id)).into_iter().flatten() {
            let what = serde_json::to_string(change).unwrap_or_default();
            told.push((change.at as u64 * 1_000, format!("{:<9} {what}", "database")));
        }
        let (Some(first), Some(last)) = (told.iter().map(|(t, _)| *t).min(), told.iter().map(|(t, _)| *t).max()) else {
            return String::new();
        };
        for line in self.lines.iter().filter(|line| (first..=last).contains(&line.t)) {
            if let Event::Fault { said } = &line.event {
                told.push((line.t, format!("{:<9} {said}", line.by)));
            }
        }
        for fence in self.fences.values().filter(|fence| (first..=last).contains(&(fence.at as u64 * 1_000))) {
            let what = if fence.left { "left" } else { "was fenced" };
            let name = self.nodes.get(&fence.number).map_or("?", |name| &**name);
            told.push((fence.at as u64 * 1_000, format!("{:<9} number {} ({name}) {what}", "database", fence.number)));
        }
        told.sort();
        let line = |(t, what): &(u64, String)| format!("    {:>10.3} ms  {what}\n", (t - first) as f64 / 1_000.0);
        told.iter().map(line).collect()
    }
}

impl Event {
    fn is_about(&self, its_id: Option<i64>, its_n: Option<&str>) -> bool {
        match self {
            Self::Asked { call, .. } => its_n == Some(&*call.n),
            Self::Failed { n, .. } | Self::RolledBack { n } => its_n == Some(&**n),
            Self::Acked { n, id, .. }
            | Self::Start { n, id, .. }
            | Self::End { n, id, .. }
            | Self::Cancelled { n, id, .. } => its_id == Some(*id) || its_n == Some(&**n),
            Self::Born { .. } | Self::Owns { .. } | Self::Fault { .. } | Self::Stopped => false,
        }
    }
}
