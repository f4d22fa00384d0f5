//! Lanes: one for each method, and for a method that is split one for each of its parts that has tasks.
//!
//! *State.* The lanes of our methods, fixed at the start. The parts in which there are tasks, as the last look at the scan index
//! showed them: from lane to lane, without looking at what is between, so it costs as much as there are parts.
//!
//! *Invariants.* The parts of a method are next to each other and apart from those of all other methods, so a node that looks for
//! them finds no task that it cannot run. Whoever owns a shard of a method owns it in all of its parts.
//!
//! *Failure.* A part that is not known yet is found at the next scan. What is enqueued on this node runs without that.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::task::Lane;

use super::signals::OTHER;
use super::{Handler, Shared};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    methods: Vec<Lane>,
    split: Split,
    parts: RwLock<BTreeSet<Lane>>,
}

/// The methods that are split: where their parts lie.
#[derive(Clone, Debug, Default)]
pub(super) struct Split(Vec<(RangeInclusive<Lane>, Lane)>);

impl Split {
    /// The lane of the method that this one is of.
    pub(super) fn method_of(&self, lane: Lane) -> Lane {
        self.0.iter().find(|(parts, _)| parts.contains(&lane)).map_or(lane, |(_, method)| *method)
    }
}

impl Lanes {
    /// An error if two split methods cannot be told apart by their lanes.
    pub(super) fn of<'h>(handlers: impl Iterator<Item = &'h Handler> + Clone) -> Result<Self> {
        let mut split: Vec<(RangeInclusive<Lane>, Lane)> = Vec::new();
        for handler in handlers.clone().filter(|handler| handler.is_split) {
            let parts = Lane::parts_of(&handler.method);
            if split.iter().any(|(others, _)| *others == parts) {
                let twice =
                    format!("{:?} and another split method have the same lanes; rename one of them", handler.method);
                return Err(Error::invalid("method", twice));
            }
            split.push((parts, Lane::of(&handler.method)));
        }
        let methods = handlers.map(|handler| Lane::of(&handler.method)).collect();
        Ok(Self { methods, split: Split(split), parts: RwLock::default() })
    }

    pub(super) fn split(&self) -> &Split {
        &self.split
    }

    /// Of methods.
    pub(super) fn methods(&self) -> &[Lane] {
        &self.methods
    }

    /// All that may have tasks now.
    pub(super) fn all(&self) -> Vec<Lane> {
        let parts = self.parts.read().unwrap_or_else(PoisonError::into_inner);
        self.methods.iter().chain(&*parts).copied().collect()
    }
}

impl Shared {
    /// Looks which parts there are.
    pub(super) async fn find_parts(&self) -> Result<()> {
        let mut found = BTreeSet::new();
        for (parts, _) in &self.lanes.split.0 {
            found.extend(self.store.lanes(parts).await?);
        }
        *self.lanes.parts.write().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(())
    }

    /// The method that a lane is of, if it is one of ours: for metrics.
    pub(super) fn method_of(&self, lane: Lane) -> String {
        let lane = self.lanes.split.method_of(lane);
        let method = self.handlers.keys().find(|method| Lane::of(method) == lane);
        method.map_or(OTHER, String::as_str).to_owned()
    }

    /// Of a lane, the shards that are ours: a bit for each.
    pub(super) fn owned_in(&self, lane: Lane) -> u64 {
        let owned = self.owned.read().unwrap_or_else(PoisonError::into_inner);
        owned.get(&self.lanes.split.method_of(lane)).copied().unwrap_or(0)
    }

    /// All lanes that have shards of ours, and these.
    pub(super) fn owned_lanes(&self) -> Vec<(Lane, u64)> {
        let all = self.lanes.all().into_iter().map(|lane| (lane, self.owned_in(lane)));
        all.filter(|(_, shards)| *shards != 0).collect()
    }
}
