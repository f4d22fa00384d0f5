//! Decoding of task rows, which people edit by hand.
//!
//! *Invariants.* Decoding never fails. A value that redrive never writes is replaced by a plain one, and is named in
//! [`Task::undecodable`]. Such a task is never executed: [`spent`](crate::settle::spent) and [`settle`](fn@crate::settle::settle)
//! make it a dead letter, by the compare-and-set of every other end. So one row stops no other.

use std::time::Duration;

use crate::classify::Kind;
use crate::clock::Timestamp;
use crate::task::{LastError, StopRequest, Task, storable};

use super::db::Columns;

/// The last version at which a task can still be claimed and settled: both count it up, and the column has 32 bits.
pub(super) const LAST_VERSION: i32 = i32::MAX - 2;

/// Most bytes of a value that are shown.
const MOST_SHOWN: usize = 100;

/// The values of a row from left to right. An error says what is there instead.
pub(super) trait Cells {
    type Text: Default;

    fn next_int(&mut self) -> Result<Option<i64>, String>;
    fn next_text(&mut self) -> Result<Option<Self::Text>, String>;
}

impl<'r> Cells for Columns<'r> {
    type Text = &'r str;

    fn next_int(&mut self) -> Result<Option<i64>, String> {
        let here = self.clone();
        self.opt_int().map_err(|_| here.as_text().map_or_else(|| "bytes that are no number".into(), quoted))
    }

    fn next_text(&mut self) -> Result<Option<&'r str>, String> {
        self.opt_text().map_err(|_| "bytes that are no text".into()) // which may be a secret
    }
}

/// Reads values, and notes those that redrive never writes.
pub(super) struct Decoder<'c, C> {
    cells: &'c mut C,
    bad: Vec<String>,
}

impl<'c, C: Cells> Decoder<'c, C> {
    pub(super) fn new(cells: &'c mut C) -> Self {
        Self { cells, bad: Vec::new() }
    }

    /// Returns a value unless something is wrong with it: that is noted.
    fn sound<T>(&mut self, column: &str, value: Result<T, String>) -> Option<T> {
        value.map_err(|holds| self.bad.push(format!("{column} holds {holds}"))).ok()
    }

    /// An integer that may be NULL.
    pub(super) fn opt_int(&mut self, column: &str) -> Option<i64> {
        let value = self.cells.next_int();
        self.sound(column, value).flatten()
    }

    /// An integer of a column that is never NULL.
    pub(super) fn int(&mut self, column: &str) -> i64 {
        let value = self.cells.next_int();
        self.sound(column, value.and_then(not_null)).unwrap_or_default()
    }

    /// An integer as one of a narrower type.
    pub(super) fn narrow<T: TryFrom<i64>>(&mut self, column: &str, value: i64) -> Option<T> {
        self.sound(column, T::try_from(value).map_err(|_| value.to_string()))
    }

    /// An integer of a narrower type, of a column that is never NULL.
    pub(super) fn number<T: TryFrom<i64> + Default>(&mut self, column: &str) -> T {
        let value = self.int(column);
        self.narrow(column, value).unwrap_or_default()
    }

    /// An integer of a narrower type that may be NULL.
    pub(super) fn opt_number<T: TryFrom<i64>>(&mut self, column: &str) -> Option<T> {
        let value = self.opt_int(column)?;
        self.narrow(column, value)
    }

    /// A text of a column that is never NULL.
    pub(super) fn text(&mut self, column: &str) -> C::Text {
        let value = self.cells.next_text();
        self.sound(column, value.and_then(not_null)).unwrap_or_default()
    }

    /// A text that may be NULL.
    pub(super) fn opt_text(&mut self, column: &str) -> Option<C::Text> {
        let value = self.cells.next_text();
        self.sound(column, value).flatten()
    }

    /// A time that may be NULL.
    pub(super) fn time(&mut self, column: &str) -> Option<Timestamp> {
        self.opt_int(column).map(Timestamp::from_millis)
    }

    /// A duration of a column that is never NULL.
    pub(super) fn duration(&mut self, column: &str) -> Duration {
        Duration::from_millis(self.number(column))
    }

    /// What a person wants of a running task.
    pub(super) fn stop(&mut self, column: &str, stored: i64) -> StopRequest {
        let known = if (0..=2).contains(&stored) { Ok(()) } else { Err(stored.to_string()) };
        self.sound(column, known);
        stop_request(stored)
    }

    /// A version. One that does not fit becomes the greatest one, which redrive never writes.
    pub(super) fn version(&mut self, column: &str) -> i32 {
        let stored = self.int(column);
        let version = i32::try_from(stored).unwrap_or(i32::MAX);
        let countable = if is_countable(version) { Ok(()) } else { Err(stored.to_string()) };
        self.sound(column, countable);
        version
    }

    /// One of several names; `None` if it is none of them.
    pub(super) fn name<T>(&mut self, column: &str, stored: &str, named: Option<T>) -> Option<T> {
        self.sound(column, named.ok_or_else(|| quoted(stored)))
    }

    /// True if nothing was noted.
    pub(super) fn is_sound(&self) -> bool {
        self.bad.is_empty()
    }

    /// Takes over what another has noted.
    pub(super) fn note_all<D>(&mut self, other: Decoder<'_, D>) {
        self.bad.extend(other.bad);
    }

    /// Says in a task what of its row could not be decoded. What is decoded after that is another's.
    pub(super) fn mark(&mut self, task: &mut Task) {
        if self.bad.is_empty() {
            return;
        }
        let bad = std::mem::take(&mut self.bad).join(", ");
        let said = match &task.undecodable {
            Some(said) => format!("{said}, {bad}"),
            None => format!("the row cannot be decoded: {bad}"),
        };
        task.last_error = Some(LastError { kind: Kind::UNDECODABLE, message: said.clone(), at: task.updated_at });
        task.undecodable = Some(said);
    }
}

fn not_null<T>(value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| "NULL".into())
}

/// Whether a claim and a settle can count this version up.
pub(super) fn is_countable(version: i32) -> bool {
    (0..=LAST_VERSION).contains(&version)
}

pub(super) fn stop_request(stored: i64) -> StopRequest {
    match stored {
        1 => StopRequest::Cancel,
        2 => StopRequest::Fail,
        _ => StopRequest::None,
    }
}

/// A value as it is shown to people.
pub(super) fn quoted(value: &str) -> String {
    format!("{:?}", storable(value, MOST_SHOWN))
}
