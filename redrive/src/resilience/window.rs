//! Counting calls, and the bad ones among them, over a window. No clock: `now` is an argument. Many threads may count at once.
//!
//! *State.* A [`TimeWindow`] has a ring of buckets, each a word of a tag (which stretch of time it counts) and a count. Calls are
//! counted in stripes, one for each thread as far as there are enough, so that threads do not wait for each other's cache
//! lines; bad calls are few and have one ring for all. Where a lock stands around it anyway, one stripe is enough. A [`CountWindow`]
//! has a ring of the last calls, one byte each.
//!
//! *Invariants.* What one thread counts is exact. A bucket whose tag is too old counts nothing. With several threads, whoever
//! counts last sees what all have counted, so a window that is over its limit is seen to be.
//!
//! *Why it is cheap.* Adding up all stripes is not, and is seldom needed. As long as time stays in one bucket, calls and bad calls
//! only become more, and more calls make the share of bad ones smaller. So whoever has added up notes how many more bad calls
//! the window can bear in any case: the [`Ease`]. A bad call takes one from it, a good one only looks that there is some left; when
//! there is none, or the bucket is another, it is added up again.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::clock::{Timestamp, millis};

/// How many bad calls, of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub bad: u64,
    pub total: u64,
}

/// From which share on, and of how many calls at least, a window is over its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub share: f64,
    pub min_calls: u64,
}

impl Limit {
    fn is_reached(&self, counts: Counts) -> bool {
        counts.total >= self.min_calls && self.is_share_reached(counts)
    }

    /// How many more bad calls there can be before one must look again, however few good ones there are beside them.
    fn spare(&self, counts: Counts) -> u64 {
        let total = counts.total.max(self.min_calls);
        let reached = |bad: u64| self.is_share_reached(Counts { bad, total });
        let first = (self.share * total as f64) as u64;
        let first = (first.saturating_sub(1)..=first + 2).find(|bad| reached(*bad)).unwrap_or(first);
        first.saturating_sub(counts.bad)
    }

    /// By division, so that 7 of 10 are 0.7.
    fn is_share_reached(&self, counts: Counts) -> bool {
        counts.bad as f64 / counts.total as f64 >= self.share
    }
}

/// One thread's counts, in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; Line::CELLS]);

impl Line {
    const CELLS: usize = 16;
}

/// The calls of the last so many stretches of time.
#[derive(Debug)]
pub(crate) struct TimeWindow {
    origin: Timestamp,
    width: u64,
    buckets: usize,
    /// Lines of a stripe.
    lines: usize,
    /// Number of stripes.
    stripes: usize,
    totals: Box<[Line]>,
    bad: Box<[AtomicU64]>,
    /// How many more bad calls it can bear: an [`Ease`].
    ease: AtomicU64,
    /// Where the last call was counted: a [`Place`].
    last: AtomicU64,
}

impl TimeWindow {
    /// A window that many threads share, or, with one stripe, one that stands behind a lock.
    pub(crate) fn new(length: Duration, buckets: u32, origin: Timestamp, stripes: usize) -> Self {
        let buckets = buckets.clamp(1, 1 << Place::SLOT_BITS) as usize;
        let width = u64::try_from(millis(length)).unwrap_or(0) / buckets as u64;
        let lines = buckets.div_ceil(Line::CELLS);
        Self {
            origin,
            width: width.max(1),
            buckets,
            lines,
            stripes,
            totals: (0..stripes * lines).map(|_| Line::default()).collect(),
            bad: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
            ease: AtomicU64::new(0),
            last: AtomicU64::new(Place::new(0, 0).0),
        }
    }

    /// Counts a call, and says whether the window is over its limit then.
    pub(crate) fn record(&self, now: Timestamp, bad: bool, limit: &Limit) -> bool {
        let place = self.place(now);
        self.add_call(place);
        if bad {
            self.add_bad(place);
        }
        !Ease(self.ease.load(SeqCst)).is_left(place.tag()) && self.is_over(place, limit)
    }

    /// Counts a call that is not bad.
    pub(crate) fn count_call(&self, now: Timestamp) {
        self.add_call(self.place(now));
    }

    /// Counts something bad that is no further call.
    pub(crate) fn count_bad(&self, now: Timestamp) {
        self.add_bad(self.place(now));
    }

    /// What is in the window.
    pub(crate) fn counts(&self, now: Timestamp) -> Counts {
        let place = self.place(now);
        self.counts_at(place, self.sum(&self.bad, place))
    }

    pub(crate) fn clear(&self) {
        self.totals.iter().flat_map(|line| &line.0).chain(&self.bad).for_each(|cell| cell.store(0, SeqCst));
        self.ease.store(0, SeqCst);
    }

    #[inline]
    fn add_call(&self, place: Place) {
        let stripe = if self.stripes > 1 { stripe() } else { 0 };
        let line = self.totals.get(stripe * self.lines + place.slot() / Line::CELLS);
        line.and_then(|line| line.0.get(place.slot() % Line::CELLS))
            .into_iter()
            .for_each(|cell| bump(cell, place.tag()));
    }

    /// First counted, then taken from the ease: who adds up meanwhile either sees it or cannot note what was seen.
    fn add_bad(&self, place: Place) {
        self.bad.get(place.slot()).into_iter().for_each(|cell| bump(cell, place.tag()));
        let less = |word| Some(Ease(word).less(place.tag()).0);
        _ = self.ease.fetch_update(SeqCst, SeqCst, less);
    }

    /// Adds up, and notes how many more bad calls there can be.
    #[cold]
    fn is_over(&self, place: Place, limit: &Limit) -> bool {
        let before = self.ease.load(SeqCst);
        let counts = self.counts_at(place, self.sum(&self.bad, place));
        if let Some(ease) = Ease(before).renewed(place.tag(), limit.spare(counts)) {
            _ = self.ease.compare_exchange(before, ease.0, SeqCst, SeqCst);
        }
        limit.is_reached(counts)
    }

    fn counts_at(&self, place: Place, bad: u64) -> Counts {
        Counts { bad, total: (0..self.stripes).map(|stripe| self.calls_of(stripe, place)).sum() }
    }

    fn calls_of(&self, stripe: usize, place: Place) -> u64 {
        let lines = self.totals.iter().skip(stripe * self.lines).take(self.lines);
        lines.map(|line| self.sum(&line.0, place)).sum()
    }

    fn sum(&self, cells: &[AtomicU64], place: Place) -> u64 {
        cells.iter().map(|cell| Bucket::of(cell.load(SeqCst)).counted(place.tag(), self.buckets)).sum()
    }

    /// Where this moment is counted: mostly where the last one was, which saves two divisions.
    #[inline]
    fn place(&self, now: Timestamp) -> Place {
        let since = now.as_millis().saturating_sub(self.origin.as_millis()).max(0).cast_unsigned();
        let last = Place(self.last.load(SeqCst));
        if since.wrapping_sub(last.stretch().wrapping_mul(self.width)) < self.width {
            return last;
        }
        let stretch = since / self.width;
        let place = Place::new(stretch, stretch % self.buckets as u64);
        self.last.store(place.0, SeqCst);
        place
    }
}

/// Where a moment is counted: the stretch of time, and in the lowest bits its slot in the ring.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    const SLOT_BITS: u32 = 10;

    fn new(stretch: u64, slot: u64) -> Self {
        Self(stretch << Self::SLOT_BITS | slot)
    }

    fn stretch(self) -> u64 {
        self.0 >> Self::SLOT_BITS
    }

    fn slot(self) -> usize {
        (self.0 & ((1 << Self::SLOT_BITS) - 1)) as usize
    }

    /// Tags begin at 1, as 0 is that of a bucket that never counted. They wrap after at least 49 days; a bucket would have to be
    /// left alone for just that long to be taken for a new one.
    fn tag(self) -> u32 {
        (self.stretch() + 1) as u32
    }
}

/// How many more bad calls a window can bear while time stays in one bucket: that bucket's tag (32 bits), a number that every bad call
/// changes (12), and how many (20).
#[derive(Clone, Copy)]
struct Ease(u64);

impl Ease {
    const MOST: u64 = (1 << 20) - 1;
    const CHANGE: u64 = 1 << 20;
    const CHANGES: u64 = 0xfff << 20;

    fn bucket(self) -> Bucket {
        Bucket { tag: (self.0 >> 32) as u32, count: (self.0 & Self::MOST) as u32 }
    }

    /// Whether there is some at the time of `tag`.
    fn is_left(self, tag: u32) -> bool {
        let ease = self.bucket();
        ease.tag == tag && ease.count > 0
    }

    /// After one more bad call: none, if this was about an earlier time.
    fn less(self, tag: u32) -> Self {
        let ease = self.bucket();
        let (tag, left) = if ease.is_at(tag) { (ease.tag, ease.count.saturating_sub(1)) } else { (tag, 0) };
        Self(u64::from(tag) << 32 | self.0.wrapping_add(Self::CHANGE) & Self::CHANGES | u64::from(left))
    }

    /// What was found at the time of `tag`, unless others are at a later one.
    fn renewed(self, tag: u32, left: u64) -> Option<Self> {
        let ease = self.bucket();
        let is_news = ease.tag == tag || !ease.is_at(tag);
        is_news.then(|| Self(u64::from(tag) << 32 | self.0 & Self::CHANGES | left.min(Self::MOST)))
    }
}

/// A bucket's word, read.
#[derive(Clone, Copy)]
struct Bucket {
    tag: u32,
    count: u32,
}

impl Bucket {
    /// A bucket does not count on beyond this, so that its count never runs over into its tag.
    const FULL: u32 = u32::MAX / 2;

    /// By how much a bucket can be ahead of a thread that was held up. Any further is far behind: tags wrap.
    const AHEAD: u32 = 1 << 16;

    fn of(word: u64) -> Self {
        Self { tag: (word >> 32) as u32, count: word as u32 }
    }

    fn first(tag: u32) -> u64 {
        u64::from(tag) << 32 | 1
    }

    /// Its count, if it is one of the last `buckets` at the time of `tag`.
    fn counted(self, tag: u32, buckets: usize) -> u64 {
        if (tag.wrapping_sub(self.tag) as usize) < buckets { u64::from(self.count) } else { 0 }
    }

    /// Whether it counts the time of `tag`, or already a little later one: a thread that was held up counts there.
    fn is_at(self, tag: u32) -> bool {
        self.tag != 0 && self.tag.wrapping_sub(tag) < Self::AHEAD
    }
}

#[inline]
fn bump(cell: &AtomicU64, tag: u32) {
    let mut word = cell.load(SeqCst);
    loop {
        let bucket = Bucket::of(word);
        if bucket.is_at(tag) {
            if bucket.count < Bucket::FULL {
                cell.fetch_add(1, SeqCst);
            }
            return;
        }
        match cell.compare_exchange_weak(word, Bucket::first(tag), SeqCst, SeqCst) {
            Ok(_) => return,
            Err(other) => word = other,
        }
    }
}

/// Number of stripes for threads that do not wait for each other: several for each thread that can run at once, as threads take
/// them by turns and two that run at once should seldom have the same.
pub(crate) fn stripes() -> usize {
    static STRIPES: OnceLock<usize> = OnceLock::new();
    *STRIPES.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(4, usize::from);
        (4 * threads).next_power_of_two().min(64)
    })
}

/// That of this thread.
#[inline]
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    // While a thread ends it has no locals any more; then any stripe will do.
    MINE.try_with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, SeqCst) % stripes());
        }
        mine.get()
    })
    .unwrap_or(0)
}

/// The last so many calls.
#[derive(Debug)]
pub(crate) struct CountWindow {
    ring: Box<[AtomicU8]>,
    recorded: AtomicU64,
    bad: AtomicI64,
}

impl CountWindow {
    pub(crate) fn new(size: u32) -> Self {
        let ring = (0..size.max(1)).map(|_| AtomicU8::new(0)).collect();
        Self { ring, recorded: AtomicU64::new(0), bad: AtomicI64::new(0) }
    }

    /// Counts a call, and says whether the window is over its limit then.
    pub(crate) fn record(&self, bad: bool, limit: &Limit) -> bool {
        let size = self.ring.len() as u64;
        // One more good call changes nothing in a ring that is full of them.
        if !bad && self.bad.load(SeqCst) == 0 && self.recorded.load(SeqCst) >= size {
            return false;
        }
        let slot = (self.recorded.fetch_add(1, SeqCst) % size) as usize;
        let before = self.ring.get(slot).map_or(0, |cell| cell.swap(u8::from(bad), SeqCst));
        let change = i64::from(bad) - i64::from(before);
        if change != 0 {
            self.bad.fetch_add(change, SeqCst);
        }
        limit.is_reached(self.counts())
    }

    pub(crate) fn counts(&self) -> Counts {
        let total = self.recorded.load(SeqCst).min(self.ring.len() as u64);
        Counts { bad: u64::try_from(self.bad.load(SeqCst)).unwrap_or(0).min(total), total }
    }

    pub(crate) fn clear(&self) {
        self.ring.iter().for_each(|cell| cell.store(0, SeqCst));
        self.bad.store(0, SeqCst);
        self.recorded.store(0, SeqCst);
    }
}

/// Failures in a row, of calls that began one after the other. Calls that run at the same time fail together when something
/// happens once; a failure therefore counts only if its call began after the failure before it was counted.
#[derive(Debug, Default)]
pub(crate) struct Streak(AtomicU64);

impl Streak {
    const COUNT: u64 = u32::MAX as u64;

    /// Taken when a call begins: the number of failures that were counted so far, modulo 2^32.
    #[inline]
    pub(crate) fn mark(&self) -> u32 {
        (self.0.load(SeqCst) >> 32) as u32
    }

    /// Counts the failure of a call that began at `mark`, and returns the length of the row then.
    pub(crate) fn fail(&self, mark: u32) -> u32 {
        let counted = |word: u64| {
            let (seq, count) = ((word >> 32) as u32, (word & Self::COUNT) as u32);
            let next = u64::from(seq.wrapping_add(1)) << 32 | u64::from(count.saturating_add(1));
            (seq == mark).then_some(next)
        };
        let word = self.0.fetch_update(SeqCst, SeqCst, counted).map(|word| (word & Self::COUNT) + 1);
        word.unwrap_or_else(|word| word & Self::COUNT).min(Self::COUNT) as u32
    }

    /// Ends the row. Most calls succeed: then this is only read, and no thread waits for another's cache line.
    #[inline]
    pub(crate) fn end(&self) {
        if self.0.load(SeqCst) & Self::COUNT != 0 {
            self.0.fetch_and(!Self::COUNT, SeqCst);
        }
    }

    pub(crate) fn count(&self) -> u32 {
        (self.0.load(SeqCst) & Self::COUNT) as u32
    }
}

/// The moments of the last so many failures.
#[derive(Debug)]
pub(crate) struct Recent {
    within: i64,
    moments: Box<[AtomicI64]>,
    recorded: AtomicU64,
}

impl Recent {
    const NEVER: i64 = i64::MIN;

    pub(crate) fn new(count: u32, within: Duration) -> Self {
        let moments = (0..count.max(1)).map(|_| AtomicI64::new(Self::NEVER)).collect();
        Self { within: millis(within), moments, recorded: AtomicU64::new(0) }
    }

    /// Notes a failure, and says whether as many as there is room for lie within the time.
    pub(crate) fn record(&self, now: Timestamp) -> bool {
        let n = self.recorded.fetch_add(1, SeqCst);
        let at = |n: u64| self.moments.get((n % self.moments.len() as u64) as usize);
        if let Some(cell) = at(n) {
            cell.store(now.as_millis(), SeqCst);
        }
        // From the oldest on, so that mostly the first one decides. Another thread may just have written over that: then
        // the next ones do.
        let mut moments = (1..=self.moments.len() as u64).filter_map(|k| at(n + k));
        moments.all(|moment| self.is_within(moment.load(SeqCst), now))
    }

    pub(crate) fn count(&self, now: Timestamp) -> u64 {
        self.moments.iter().filter(|cell| self.is_within(cell.load(SeqCst), now)).count() as u64
    }

    pub(crate) fn clear(&self) {
        self.moments.iter().for_each(|cell| cell.store(Self::NEVER, SeqCst));
        self.recorded.store(0, SeqCst);
    }

    fn is_within(&self, moment: i64, now: Timestamp) -> bool {
        moment != Self::NEVER && now.as_millis().saturating_sub(moment) < self.within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_calls_that_ran_at_the_same_time_count_as_one() {
        let streak = Streak::default();
        let together = [streak.mark(); 100];
        assert_eq!(together.map(|mark| streak.fail(mark)), [1; 100]);
        let next = streak.mark();
        assert_eq!((streak.fail(next), streak.fail(next)), (2, 2));
        let before = streak.mark();
        streak.end();
        assert_eq!((streak.count(), streak.fail(before), streak.fail(together[0])), (0, 1, 1));
    }

    const ALWAYS: Limit = Limit { share: 0.5, min_calls: 4 };

    /// Tags of the shortest buckets wrap after 49 days.
    #[test]
    fn a_window_counts_after_months_too_whether_it_was_left_alone_or_cleared() {
        let start = Timestamp::from_millis(1_800_000_000_000);
        for days in [1, 24, 25, 30, 49, 50, 75, 100, 365] {
            let window = TimeWindow::new(Duration::from_millis(10), 10, start, stripes());
            let now = start + Duration::from_secs(days * 24 * 3600);
            let four = || [true, false, true, false].map(|bad| window.record(now, bad, &ALWAYS));
            window.record(start, true, &ALWAYS);
            assert_eq!(four(), [false, false, false, true], "left alone for {days} days");
            window.clear();
            assert_eq!(four(), [false, false, false, true], "cleared after {days} days");
            assert_eq!(window.counts(now), Counts { bad: 2, total: 4 });
            assert_eq!(window.counts(now + Duration::from_millis(10)), Counts::default());
        }
    }

    #[test]
    fn a_thread_that_was_held_up_counts_where_the_others_are() {
        let start = Timestamp::from_millis(1_800_000_000_000);
        let window = TimeWindow::new(Duration::from_millis(100), 10, start, 1);
        let later = start + Duration::from_millis(500);
        window.count_call(later);
        window.count_call(start + Duration::from_millis(450)); // still in its own bucket
        window.count_call(later + Duration::from_millis(1_000)); // the same slot, ten buckets on
        window.count_call(later); // too late for its own
        assert_eq!(window.counts(later + Duration::from_millis(1_000)).total, 2);
    }
}
