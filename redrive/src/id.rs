//! Task ids: small, sortable by time, and enough to find the row.
//!
//! ```text
//! 0 | 1 bit: monthly | 40 bits: ms since 2026-01-01 | 6 bits: shard | 10 bits: slot of the maker | 6 bits: sequence
//! ```
//!
//! The shard and the time are inside the id, and whether the row lies in a table of its month or in the single one. So
//! `id` alone is the primary key and names its shard and its table, for ever: however old what one knows of the layout is,
//! one never looks in the wrong place. Ids of one maker never repeat: a burst of more than 64 in a millisecond and shard borrows from
//! the milliseconds to come. Two makers differ by their slot, which is handed out by the database and comes round again after 1,024
//! of them: whoever begins to enqueue looks whether another who does has its slot, and then takes the next (`store/turn.rs`). Should two
//! meet nonetheless, the primary key refuses the second row, while the first is there, and it is given another id.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::error::{Error, Result};

/// How many shards there are. Fixed: it is stored in every id.
pub const SHARDS: u8 = 64;

const EPOCH_MS: i64 = 1_767_225_600_000; // 2026-01-01T00:00:00Z
const SEQUENCE_BITS: u32 = 6;
const SLOT_BITS: u32 = 10;
const SHARD_BITS: u32 = 6;
const TIME_SHIFT: u32 = SEQUENCE_BITS + SLOT_BITS + SHARD_BITS;
const TIME_BITS: u32 = 40;
/// Says that the row is in a table of its month.
const MONTHLY: i64 = 1 << (TIME_SHIFT + TIME_BITS);

/// The name of a task. A string in JSON: JavaScript cannot hold 64-bit numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(i64);

/// A map by task id.
pub(crate) type IdMap<V> = HashMap<TaskId, V, BuildHasherDefault<IdHasher>>;
/// A set of task ids.
pub(crate) type IdSet = HashSet<TaskId, BuildHasherDefault<IdHasher>>;

/// A map by name: of a method.
pub(crate) type NameMap<V> = HashMap<String, V, BuildHasherDefault<NameHasher>>;

/// Hashes names quickly. They come from the application, so it need not withstand an attacker.
#[derive(Default)]
pub(crate) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= xxhash_rust::xxh3::xxh3_64(bytes);
    }

    fn write_u8(&mut self, _: u8) {} // what ends a string: there is nothing after it

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Spreads ids over a table. Nobody but us makes them, so it need not withstand an attacker.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_i64(&mut self, n: i64) {
        self.write_u64(n.cast_unsigned());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl TaskId {
    /// From the number in the database.
    pub const fn from_i64(id: i64) -> Self {
        Self(id)
    }

    /// The number in the database.
    pub const fn as_i64(self) -> i64 {
        self.0
    }

    /// The shard that the task belongs to.
    pub const fn shard(self) -> u8 {
        ((self.0 >> (SEQUENCE_BITS + SLOT_BITS)) & (SHARDS as i64 - 1)) as u8
    }

    /// When the id was made, to within a burst.
    pub const fn made_at(self) -> Timestamp {
        Timestamp::from_millis(((self.0 & !MONTHLY) >> TIME_SHIFT) + EPOCH_MS)
    }

    /// Whether the task is kept in a table of the month in which its id was made.
    pub const fn is_monthly(self) -> bool {
        self.0 & MONTHLY != 0
    }

    /// The first id that can be made at a time, in the single table: a bound for "created since" in lists.
    pub const fn first_at(time: Timestamp) -> Self {
        let (ms, most) = (time.as_millis() - EPOCH_MS, (1 << TIME_BITS) - 1);
        Self(if ms < 0 {
            0
        } else if ms > most {
            most << TIME_SHIFT
        } else {
            ms << TIME_SHIFT
        })
    }

    /// The same id in a table of its month: a bound there.
    pub const fn in_month(self) -> Self {
        Self(self.0 | MONTHLY)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TaskId {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let id = s.parse().ok().filter(|id: &i64| *id > 0);
        id.map(Self).ok_or_else(|| Error::invalid("id", format!("{s:?} is not a task id, which is a positive number")))
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The slot of who has this number.
pub(crate) fn in_slots(number: i64) -> i64 {
    number.rem_euclid(1 << SLOT_BITS)
}

/// Makes ids: one for each process that enqueues, with a slot of its own.
#[derive(Debug)]
pub(crate) struct IdMaker {
    slot: AtomicI64,
    /// Whether new ids are of monthly tables.
    monthly: Arc<AtomicBool>,
    /// Per shard the last (ms, sequence) given out, as one number.
    last: [AtomicU64; SHARDS as usize],
    /// Spreads tasks that have neither business nor key over the shards.
    turn: AtomicU64,
}

impl IdMaker {
    /// `slot` may be any number: it is taken modulo 1,024. `monthly` says whether ids are of monthly tables.
    pub(crate) fn new(slot: i64, monthly: Arc<AtomicBool>) -> Self {
        let (last, turn) = (std::array::from_fn(|_| AtomicU64::new(0)), AtomicU64::new(slot.unsigned_abs()));
        Self { slot: AtomicI64::new(in_slots(slot)), monthly, last, turn }
    }

    /// From now on ids have this slot.
    pub(crate) fn move_to(&self, slot: i64) {
        self.slot.store(in_slots(slot), Ordering::Release);
    }

    /// A new id in a shard.
    pub(crate) fn next(&self, shard: u8, now: Timestamp) -> TaskId {
        let shard = shard % SHARDS;
        let ms = u64::try_from(now.as_millis() - EPOCH_MS).unwrap_or(0);
        let later = |last: u64| (ms << SEQUENCE_BITS).max(last + 1);
        let last = self
            .last
            .get(usize::from(shard))
            .map_or(Ok(0), |last| last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(later(last))));
        let (Ok(last) | Err(last)) = last;
        let made = i64::try_from(later(last)).unwrap_or(i64::MAX);
        let (time, sequence) = (made >> SEQUENCE_BITS, made & ((1 << SEQUENCE_BITS) - 1));
        let shard = i64::from(shard) << (SEQUENCE_BITS + SLOT_BITS);
        let monthly = if self.monthly.load(Ordering::Acquire) { MONTHLY } else { 0 };
        let slot = self.slot.load(Ordering::Acquire) << SEQUENCE_BITS;
        TaskId((time << TIME_SHIFT) & (MONTHLY - 1) | monthly | shard | slot | sequence)
    }

    /// The next shard in turn.
    pub(crate) fn any_shard(&self) -> u8 {
        (self.turn.fetch_add(1, Ordering::Relaxed) % u64::from(SHARDS)) as u8
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_id_knows_its_shard_and_time() {
        let maker = IdMaker::new(1023, Arc::default());
        let now: Timestamp = "2027-05-01T00:00:00Z".parse().unwrap();
        for shard in 0..SHARDS {
            let id = maker.next(shard, now);
            assert_eq!((id.shard(), id.made_at(), id.is_monthly()), (shard, now, false));
            assert!(id >= TaskId::first_at(now));
            assert_eq!(id.to_string().parse::<TaskId>().unwrap(), id);
        }
    }

    #[test]
    fn an_id_says_whether_its_table_is_of_a_month() {
        let monthly = Arc::new(AtomicBool::new(false));
        let maker = IdMaker::new(1023, monthly.clone());
        let now: Timestamp = "2060-05-01T00:00:00Z".parse().unwrap();
        let before = maker.next(63, now);
        monthly.store(true, Ordering::Release);
        let id = maker.next(63, now);
        assert!(id.is_monthly() && id.as_i64() > 0 && id > before, "what is newer sorts later");
        assert_eq!((id.shard(), id.made_at()), (63, now));
        assert!(id >= TaskId::first_at(now).in_month() && before < TaskId::first_at(now).in_month());
    }

    #[test]
    fn a_burst_in_one_millisecond_and_shard_never_repeats_and_grows() {
        let (a, b) = (IdMaker::new(1, Arc::default()), IdMaker::new(2, Arc::default()));
        let now = Timestamp::from_millis(EPOCH_MS + 5);
        let ids: Vec<_> = (0..10_000).map(|_| a.next(7, now)).collect();
        assert!(ids.windows(2).all(|w| w[0] < w[1]));
        let all: HashSet<_> = ids.into_iter().chain((0..10_000).map(|_| b.next(7, now))).collect();
        assert_eq!(all.len(), 20_000);
    }

    #[test]
    fn nonsense_is_not_an_id() {
        for text in ["", "-5", "0", "1.5", "99999999999999999999", "x"] {
            assert!(text.parse::<TaskId>().is_err(), "{text:?}");
        }
    }
}
