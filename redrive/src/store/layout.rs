//! Which table a task lies in: no I/O here. How tables come and go is in `tables`.
//!
//! *State.* [`Tables`]: what one store knows of the tables that there are, a snapshot of `redrive_table`.
//!
//! *Invariants.* A task's table follows from its id (and the number of tables a month, which never changes): the single one,
//! or that of the month in which the id was made and of its shard. So a snapshot that is out of date never leads to a wrong
//! table, only to one that is not known yet or not there any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::id::{SHARDS, TaskId};

use super::hot::{LaneShards, Slice};

/// How tasks are spread over tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Layout {
    /// One table, `retry_task`.
    #[default]
    Single,
    /// `retry_task_YYYYMM_B`: for each month (UTC) so many tables, each for the shards with `shard % tables == B`.
    Monthly {
        /// How many, from 1 to 64. Fixed for the life of the database.
        tables: u8,
    },
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("single"),
            Self::Monthly { tables } => write!(f, "monthly, {tables} tables a month"),
        }
    }
}

/// A month in UTC: months since the year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Month(i64);

impl Month {
    pub(super) fn of(time: Timestamp) -> Self {
        // Every timestamp is one of jiff's.
        let date = jiff::Timestamp::from_millisecond(time.as_millis()).unwrap_or_default();
        let date = date.to_zoned(jiff::tz::TimeZone::UTC);
        Self(i64::from(date.year()) * 12 + i64::from(date.month()) - 1)
    }

    /// From `202701`.
    pub(super) fn from_number(number: i64) -> Self {
        Self(number / 100 * 12 + number % 100 - 1)
    }

    /// As `202701`.
    pub(super) fn number(self) -> i64 {
        self.0 / 12 * 100 + self.0 % 12 + 1
    }

    pub(super) fn start(self) -> Timestamp {
        let date = i16::try_from(self.0 / 12).ok().zip(i8::try_from(self.0 % 12 + 1).ok());
        let start = date.and_then(|(year, month)| {
            jiff::civil::Date::new(year, month, 1).ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()
        });
        start.map_or(Timestamp::EPOCH, |start| Timestamp::from_millis(start.timestamp().as_millisecond()))
    }

    pub(super) fn plus(self, months: i64) -> Self {
        Self(self.0 + months)
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}", self.number())
    }
}

/// A table of tasks. Shown as its name in SQL, which has nothing in it but letters, digits and underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Table {
    Single,
    Of { month: Month, bucket: u8 },
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("retry_task"),
            Self::Of { month, bucket } => write!(f, "retry_task_{month}_{bucket}"),
        }
    }
}

impl Table {
    pub(super) fn month(self) -> Option<Month> {
        match self {
            Self::Single => None,
            Self::Of { month, .. } => Some(month),
        }
    }

    /// Which ids are in it.
    pub(super) fn ids(self) -> Ids {
        if self == Self::Single { Ids::Single } else { Ids::Monthly }
    }
}

/// Which ids a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    /// Of the single table.
    Single,
    /// Of monthly tables.
    Monthly,
    /// Both.
    Mixed,
}

/// A table of the archive, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Archive {
    Single,
    Of(Month),
}

impl fmt::Display for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("retry_archive"),
            Self::Of(month) => write!(f, "retry_archive_{month}"),
        }
    }
}

/// What a store knows of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// Grows with every change.
    pub(super) version: i64,
    /// How many a month; none in the single layout.
    pub(super) tables: u8,
    /// Whether new tasks go into them: not before every node has said that it reads them.
    pub(super) are_written: bool,
    /// Those that there are, and whether scans look into them. Empty in the single layout.
    pub(super) known: BTreeMap<Table, bool>,
    /// Monthly tables of the archive.
    pub(super) archives: BTreeSet<Month>,
}

impl Tables {
    /// Where a task is, if it is anywhere.
    pub(super) fn of(&self, id: TaskId) -> Table {
        if !id.is_monthly() || self.tables == 0 {
            return Table::Single;
        }
        Table::Of { month: Month::of(id.made_at()), bucket: id.shard() % self.tables }
    }

    pub(super) fn has(&self, table: Table) -> bool {
        table == Table::Single || self.known.contains_key(&table)
    }

    /// Whether a task of this id can be, as far as we know: its table is there.
    pub(super) fn may_have(&self, id: TaskId) -> bool {
        if id.is_monthly() { self.tables > 0 && self.has(self.of(id)) } else { true }
    }

    /// Whether scans look into a table.
    pub(super) fn reads(&self, table: Table) -> bool {
        self.known.get(&table).copied().unwrap_or(table == Table::Single)
    }

    /// The tables that scans look into, the newest last.
    pub(super) fn read(&self) -> impl Iterator<Item = Table> {
        let single = Some(Table::Single).filter(|table| self.reads(*table));
        let monthly = self.known.iter().filter(|(table, read)| **read && **table != Table::Single);
        single.into_iter().chain(monthly.map(|(table, _)| *table))
    }

    /// All tables, the newest first.
    pub(super) fn all(&self) -> impl Iterator<Item = Table> {
        self.known.keys().rev().copied().filter(|table| *table != Table::Single).chain([Table::Single])
    }

    /// Where to look for the tasks of slices: no table that has none of their shards.
    pub(super) fn reading(&self, slices: &[Slice]) -> Vec<(Table, Vec<Slice>)> {
        let of = |table| {
            let in_it = |slice: &&Slice| match table {
                Table::Single => true,
                Table::Of { bucket, .. } => slice.shard % self.tables.max(1) == bucket,
            };
            (table, slices.iter().filter(in_it).copied().collect::<Vec<_>>())
        };
        self.read().map(of).filter(|(_, slices)| !slices.is_empty()).collect()
    }

    /// The same for lanes with shards.
    pub(super) fn reading_lanes(&self, lanes: &[LaneShards]) -> Vec<(Table, Vec<LaneShards>)> {
        let of = |table| {
            let mask = match table {
                Table::Single => u64::MAX,
                Table::Of { bucket, .. } => {
                    let in_it = (0..SHARDS).filter(|shard| shard % self.tables.max(1) == bucket);
                    in_it.fold(0, |mask, shard| mask | 1 << shard)
                }
            };
            let lanes = lanes.iter().map(|(lane, shards)| (*lane, shards & mask)).filter(|(_, shards)| *shards != 0);
            (table, lanes.collect::<Vec<_>>())
        };
        self.read().map(of).filter(|(_, lanes)| !lanes.is_empty()).collect()
    }

    /// Sorts things that belong to tasks by their tables. What lies in a table that is not there is left out.
    pub(super) fn sort<T>(
        &self,
        things: impl IntoIterator<Item = T>,
        id: impl Fn(&T) -> TaskId,
    ) -> Vec<(Table, Vec<T>)> {
        let there = things.into_iter().filter(|thing| self.may_have(id(thing)));
        self.place(there, &id)
    }

    /// The same for tasks that are to be written: none is left out. If a table has gone meanwhile, the database says so.
    pub(super) fn place<T>(
        &self,
        things: impl IntoIterator<Item = T>,
        id: impl Fn(&T) -> TaskId,
    ) -> Vec<(Table, Vec<T>)> {
        if self.tables == 0 {
            let things: Vec<T> = things.into_iter().collect();
            return if things.is_empty() { Vec::new() } else { vec![(Table::Single, things)] };
        }
        let mut placed: BTreeMap<Table, Vec<T>> = BTreeMap::new();
        things.into_iter().for_each(|thing| placed.entry(self.of(id(&thing))).or_default().push(thing));
        placed.into_iter().collect()
    }

    /// Which ids are in tables for tasks that have ended.
    pub(super) fn ids(&self) -> Ids {
        if self.tables == 0 { Ids::Single } else { Ids::Mixed }
    }

    /// Where what ends now goes.
    pub(super) fn archive(&self, now: Timestamp) -> Archive {
        Some(Month::of(now)).filter(|month| self.archives.contains(month)).map_or(Archive::Single, Archive::Of)
    }

    /// Where what has ended may be.
    pub(super) fn all_archives(&self) -> impl Iterator<Item = Archive> {
        self.archives.iter().rev().map(|month| Archive::Of(*month)).chain([Archive::Single])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::id::{IdMaker, SHARDS};
    use crate::task::Lane;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn slices(shards: impl Iterator<Item = u8>) -> Vec<Slice> {
        shards.map(|shard| Slice { lane: Lane(1), shard, from: Timestamp::EPOCH }).collect()
    }

    /// Two tables a month, of December and January, all read.
    fn two_months() -> Tables {
        let table = |month, bucket| (Table::Of { month: Month::from_number(month), bucket }, true);
        let known = [table(202412, 0), table(202412, 1), table(202501, 0), table(202501, 1)];
        Tables {
            tables: 2,
            are_written: true,
            known: [(Table::Single, false)].into_iter().chain(known).collect(),
            ..Tables::default()
        }
    }

    #[test]
    fn months_are_counted_in_utc() {
        assert_eq!(Month::of(at("2026-12-31T23:59:59.999Z")).number(), 202612);
        assert_eq!(Month::of(at("2027-01-01T00:00:00Z")).to_string(), "202701");
        let month = Month::from_number(202612);
        assert_eq!((month.start(), month.plus(1).start()), (at("2026-12-01T00:00:00Z"), at("2027-01-01T00:00:00Z")));
        assert_eq!((month.plus(1).number(), month.plus(-12).number()), (202701, 202512));
    }

    /// Source 3, 2.1: order 123 in shard 33, in January, is in `retry_task_202501_1`; of ids made since 2026 likewise.
    #[test]
    fn source_3_a_task_is_in_the_table_of_its_month_and_shard() {
        let monthly = Arc::new(AtomicBool::new(false));
        let (maker, tables) = (IdMaker::new(1, monthly.clone()), Tables { tables: 2, ..Tables::default() });
        let single = maker.next(33, at("2027-01-15T00:00:00Z"));
        assert_eq!(tables.of(single).to_string(), "retry_task");
        monthly.store(true, Ordering::Release);
        for (shard, name) in [(33, "retry_task_202701_1"), (32, "retry_task_202701_0")] {
            assert_eq!(tables.of(maker.next(shard, at("2027-01-15T00:00:00Z"))).to_string(), name);
        }
    }

    /// Source 3, 2.2: with 8 nodes each reads one table of each live month, 2 in all; with 9 nodes both, 4 in all.
    #[test]
    fn source_3_eight_nodes_read_two_tables_each_nine_read_four() {
        let tables = two_months();
        let read = |nodes: u8, rank: u8| {
            let ours = slices((0..SHARDS).filter(|shard| shard % nodes == rank));
            tables.reading(&ours).iter().map(|(table, _)| table.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(read(8, 0), ["retry_task_202412_0", "retry_task_202501_0"]);
        assert_eq!(read(8, 3), ["retry_task_202412_1", "retry_task_202501_1"]);
        assert_eq!(read(9, 0).len(), 4);
    }

    #[test]
    fn each_table_is_asked_for_its_own_shards_only() {
        let of_table = two_months().reading(&slices(0..SHARDS));
        let shards = |of: &[Slice]| of.iter().map(|s| s.shard % 2).collect::<BTreeSet<_>>();
        assert_eq!(of_table.iter().map(|(_, of)| (of.len(), shards(of).len())).collect::<Vec<_>>(), [(32, 1); 4]);
    }

    #[test]
    fn a_table_that_is_not_there_holds_nothing() {
        let monthly = Arc::new(AtomicBool::new(false));
        let maker = IdMaker::new(1, monthly.clone());
        let (single, now) = (maker.next(0, at("2027-01-15T00:00:00Z")), at("2027-01-15T00:00:00Z"));
        monthly.store(true, Ordering::Release);
        let monthly = maker.next(0, now);
        for tables in [Tables::default(), two_months()] {
            assert!(tables.may_have(single) && !tables.may_have(monthly));
            assert_eq!(tables.sort([single, monthly], |id| *id), [(Table::Single, vec![single])]);
        }
        let placed = two_months().place([single, monthly], |id| *id);
        assert_eq!(placed.len(), 2, "what is to be written is never left out");
    }
}
