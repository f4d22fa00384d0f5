//! Pages of a list that end by their bytes, too: a thousand tasks may have a gigabyte of params.
//!
//! A page is read in steps, as each is a search of its own: first [`STEP`] entries, then as many as have room by the size of those that
//! were read, and at most twice as many as these: so little is read in vain, also where small entries are followed by large ones. Where
//! none can be large, one step is all. A page ends when it has as many entries as were asked for, or [`MOST_BYTES`], or when a step
//! found less than it looked for: then the rest takes another look ([`Store::search`](redrive::Store::search)), and a filter that finds
//! little does not keep its caller waiting.

use redrive::store::{Archived, DeadTask, Found};
use redrive::{Task, TaskId};

use super::input::Paging;
use super::problem::Answer;

/// Entries that are read at once, at the least.
const STEP: u32 = 50;
/// A page with so much in it gets no more.
const MOST_BYTES: usize = 16 << 20;

/// An entry of a list.
pub(super) trait Listed {
    fn id(&self) -> TaskId;
    /// About how large it is: what may be large counts.
    fn bytes(&self) -> usize;
}

impl Listed for Task {
    fn id(&self) -> TaskId {
        self.id
    }

    fn bytes(&self) -> usize {
        self.params.len()
    }
}

impl Listed for DeadTask {
    fn id(&self) -> TaskId {
        self.task.id
    }

    fn bytes(&self) -> usize {
        self.task.bytes()
    }
}

impl Listed for Archived {
    fn id(&self) -> TaskId {
        self.task.id
    }

    fn bytes(&self) -> usize {
        self.task.bytes() + self.result.as_ref().map_or(0, String::len)
    }
}

/// How large entries may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// They have neither params nor results.
    Small,
    /// Some may be of a megabyte.
    Any,
}

impl Size {
    /// Of entries that are read with their params, or without.
    pub(super) fn with_params(has: bool) -> Self {
        if has { Self::Any } else { Self::Small }
    }
}

/// The page that was asked for; `look` finds so many entries after an id.
pub(super) async fn page<T, F>(paging: &Paging, size: Size, look: impl Fn(Option<TaskId>, u32) -> F) -> Answer<Found<T>>
where
    T: Listed,
    F: Future<Output = redrive::Result<Found<T>>>,
{
    let mut page = Page { items: Vec::new(), bytes: 0, left: paging.limit()?, next: paging.after, size };
    while page.take(look(page.next, page.step()).await?) {}
    Ok(Found { items: page.items, continue_after: page.next })
}

/// A page as far as it is read.
struct Page<T> {
    items: Vec<T>,
    bytes: usize,
    /// Entries that it has room for.
    left: u32,
    next: Option<TaskId>,
    size: Size,
}

impl<T: Listed> Page<T> {
    /// How many entries are looked for next.
    fn step(&self) -> u32 {
        match self.size {
            Size::Small => self.left,
            Size::Any => self.left.min(self.room().max(STEP)),
        }
    }

    /// How many more entries like those that were read are on a page, as far as so few can tell.
    fn room(&self) -> u32 {
        let (read, room) = (self.items.len(), MOST_BYTES.saturating_sub(self.bytes));
        let like = room.saturating_mul(read) / self.bytes.max(1);
        u32::try_from(like.min(read * 2)).unwrap_or(u32::MAX)
    }

    /// Takes up what a step found. Whether there is to be another step.
    fn take(&mut self, found: Found<T>) -> bool {
        let is_whole = found.items.len() >= self.step() as usize;
        self.next = found.continue_after;
        for item in found.items {
            if self.bytes >= MOST_BYTES {
                self.next = self.items.last().map(Listed::id);
                return false;
            }
            self.bytes += item.bytes();
            self.left = self.left.saturating_sub(1);
            self.items.push(item);
        }
        is_whole && self.next.is_some() && self.left > 0 && self.bytes < MOST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id, and how large it is.
    type Entry = (i64, usize);

    impl Listed for Entry {
        fn id(&self) -> TaskId {
            TaskId::from_i64(self.0)
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn empty(limit: u32) -> Page<Entry> {
        Page { items: Vec::new(), bytes: 0, left: limit, next: None, size: Size::Any }
    }

    /// These ids, newest first, of so many bytes each.
    fn found(ids: std::ops::Range<i64>, bytes: usize, next: Option<i64>) -> Found<Entry> {
        Found { items: ids.rev().map(|id| (id, bytes)).collect(), continue_after: next.map(TaskId::from_i64) }
    }

    #[test]
    fn a_page_is_read_step_by_step_until_it_is_full() {
        let mut page = empty(70);
        assert_eq!(page.step(), 50);
        assert!(page.take(found(50..100, 1, Some(50))));
        assert_eq!(page.step(), 20);
        assert!(!page.take(found(30..50, 1, Some(30))));
        assert_eq!((page.items.len(), page.next), (70, Some(TaskId::from_i64(30))));
    }

    #[test]
    fn a_step_is_as_large_as_what_was_read_lets_expect() {
        let steps = |bytes: usize| {
            let (mut page, mut steps, mut last) = (empty(1_000), Vec::new(), 1_000);
            loop {
                steps.push(page.step());
                let first = last - i64::from(page.step());
                if !page.take(found(first..last, bytes, Some(first))) {
                    return steps;
                }
                last = first;
            }
        };
        assert_eq!(steps(100), [50, 100, 300, 550], "small ones, of which there may be large ones among the next");
        assert_eq!(steps(0), [50, 100, 300, 550]);
        assert_eq!(steps(MOST_BYTES / 120), [50, 70, 50], "there was a little room left");
        assert_eq!(steps(MOST_BYTES / 10), [50]);
        assert_eq!(Page { size: Size::Small, ..empty(1_000) }.step(), 1_000, "none can be large");
    }

    #[test]
    fn what_a_look_does_not_find_is_left_to_the_next() {
        let mut page = empty(1_000);
        assert!(!page.take(found(50..99, 1, Some(7))), "there is more, and it takes another look");
        assert_eq!((page.items.len(), page.next), (49, Some(TaskId::from_i64(7))));
        assert!(!empty(1_000).take(found(0..50, 1, None)), "that was all");
    }

    #[test]
    fn a_page_ends_by_its_bytes_and_goes_on_with_the_next() {
        let mut page = empty(1_000);
        assert!(!page.take(found(0..50, 1 << 20, None)));
        assert_eq!((page.items.len(), page.next), (16, Some(TaskId::from_i64(34))));
        let mut page = empty(1_000);
        assert!(!page.take(found(0..50, MOST_BYTES, None)), "one that is larger than a page is a page");
        assert_eq!(page.items.len(), 1);
    }
}
