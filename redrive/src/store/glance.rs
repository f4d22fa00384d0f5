//! What somebody who is called at night asks first: how much is due, and which errors the dead letters have in common. Both look
//! at a bounded number of rows and say so.

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{SHARDS, TaskId};
use crate::settle::DeadReason;

use super::Store;
use super::archive::read_reason;
use super::count::{Count, MOST_EXACT};
use super::db::{Row, query};
use super::method::depths;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::search::ROWS;

/// How much of an error's message tells errors apart.
const TELLING: u32 = 120;

/// Dead letters that died of the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadGroup {
    /// Of this method.
    pub method: String,
    /// For this reason.
    pub reason: DeadReason,
    /// With an error of this kind.
    pub error_kind: Option<String>,
    /// What the last of them said: its beginning.
    pub message: Option<String>,
    /// A part of the message that all of them have, on one line: to look for them. `None` if there is none that says anything.
    pub common: Option<String>,
    /// How many.
    pub letters: u64,
    /// How many of them nobody has taken over.
    pub unowned: u64,
    /// When the first of them died.
    pub first: Timestamp,
    /// When the last did.
    pub last: Timestamp,
    /// One of them: the newest.
    pub newest: TaskId,
}

/// Dead letters by what they died of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadGroups {
    /// Those with the most letters first.
    pub groups: Vec<DeadGroup>,
    /// Whether all letters were looked at, and not only the newest [`ROWS`](super::MOST_LOOKED_AT).
    pub all: bool,
}

impl Store {
    /// How many tasks are due, up to [`MOST_EXACT`] of each lane and table.
    pub async fn count_due(&self, now: Timestamp) -> Result<Count> {
        // All shards are named, so that the index of lane, shard and time is used to its end.
        let shards = (0..SHARDS).map(|shard| shard.to_string()).collect::<Vec<_>>().join(", ");
        let mut all = Count::default();
        for table in self.tables().read() {
            let counted = retrying!(self.pools(), Use::Read, Scope::Statement, "counting what is due", |c, _| {
                let mut here = Count::default();
                for in_it in depths(c, table, 1).await? {
                    let sql = format!(
                        "SELECT COUNT(*) FROM (SELECT 1 AS n FROM {table} WHERE lane = ? AND shard IN ({shards}) \
                         AND next_retry_time <= ? LIMIT ?) x"
                    );
                    let count = query(sql).bind(in_it.lane).bind(now).bind(MOST_EXACT.cast_signed());
                    let n = c.row(count).await?.map(|row| row.int()).transpose()?.unwrap_or(0);
                    here = here + Count::up_to(MOST_EXACT, n.max(0).unsigned_abs());
                }
                Ok(here)
            });
            all = all + self.learn_from(counted).await?;
        }
        Ok(all)
    }

    /// The newest dead letters by what they died of. Numbers in messages do not tell errors apart.
    pub async fn dead_groups(&self) -> Result<DeadGroups> {
        let sql = format!(
            "SELECT method_name, dead_reason, last_error_kind, said, COUNT(*), COUNT(*) - COUNT(owner), MIN(dead_at), \
             MAX(dead_at), MAX(id) FROM (SELECT id, method_name, dead_reason, last_error_kind, \
             SUBSTR(last_error_msg, 1, {TELLING}) AS said, owner, dead_at FROM retry_dead ORDER BY id DESC LIMIT {ROWS}) x \
             GROUP BY method_name, dead_reason, last_error_kind, said"
        );
        let found = retrying!(self.pools(), Use::Read, Scope::Statement, "grouping dead letters", |c, _| {
            c.rows(query(sql.clone())).await?.iter().map(read_group).collect::<sqlx::Result<Vec<_>>>()
        })?;
        let all = found.iter().map(|group| group.letters).sum::<u64>() < u64::from(ROWS);
        Ok(DeadGroups { groups: merged(found), all })
    }
}

/// Groups whose messages differ in numbers only are one.
fn merged(found: Vec<DeadGroup>) -> Vec<DeadGroup> {
    let mut groups: std::collections::HashMap<_, DeadGroup> = std::collections::HashMap::new();
    for group in found {
        let said = group.message.as_deref().map(without_numbers);
        let key = (group.method.clone(), group.reason, group.error_kind.clone(), said);
        match groups.get_mut(&key) {
            Some(known) => known.add(group),
            None => _ = groups.insert(key, group),
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.letters), std::cmp::Reverse(group.newest)));
    groups
}

impl DeadGroup {
    fn add(&mut self, other: Self) {
        self.letters += other.letters;
        self.unowned += other.unowned;
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        if other.newest > self.newest {
            (self.newest, self.message) = (other.newest, other.message);
        }
        let said = self.message.as_deref().map(without_numbers).unwrap_or_default();
        self.common = longest(said.split(|c: char| c == '#' || c.is_control()));
    }
}

/// The longest part that says anything. Parts end with their line: forms do not send line breaks as they are.
fn longest<'p>(parts: impl Iterator<Item = &'p str>) -> Option<String> {
    let telling = parts.map(str::trim).filter(|part| part.contains(char::is_alphanumeric));
    telling.max_by_key(|part| part.len()).map(str::to_owned)
}

/// A message with its numbers, and ids in hexadecimal, as `#`.
fn without_numbers(said: &str) -> String {
    let mut out = String::with_capacity(said.len());
    for word in said.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let (core, end) = word.split_at(word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len());
        let is_id = core.contains(|c: char| c.is_ascii_digit()) && core.chars().all(|c| c.is_ascii_hexdigit());
        out += if is_id { "#" } else { core };
        out += end;
    }
    out
}

fn read_group(row: &Row) -> sqlx::Result<DeadGroup> {
    let mut c = row.columns();
    let (method, reason) = (c.text()?.to_owned(), read_reason(c.text()?)?);
    let (error_kind, message) = (c.opt_text()?.map(str::to_owned), c.opt_text()?.map(str::to_owned));
    let [letters, unowned] = [c.int()?, c.int()?].map(|n| n.max(0).unsigned_abs());
    let [first, last] = [c.int()?, c.int()?].map(Timestamp::from_millis);
    let newest = TaskId::from_i64(c.int()?);
    let common = message.as_deref().and_then(|said| longest(said.split(char::is_control)));
    Ok(DeadGroup { method, reason, error_kind, message, common, letters, unowned, first, last, newest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_differ_in_numbers_are_the_same() {
        let same = ["order 17 not found (id 7f3a9)", "order 4 not found (id 0b12)"].map(without_numbers);
        assert_eq!(same, ["order # not found (id #)", "order # not found (id #)"]);
        assert_eq!(without_numbers("a bad face"), "a bad face", "words of a to f are words");
    }

    #[test]
    fn what_a_group_has_in_common_is_on_one_line_and_says_something() {
        let of = |said: &str| longest(said.split(|c: char| c == '#' || c.is_control()));
        assert_eq!(of("at #\r\nno route to host #\n  retry"), Some("no route to host".into()));
        assert_eq!((of("#"), of(" # (#)"), of("")), (None, None, None));
    }
}
