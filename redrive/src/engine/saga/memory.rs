//! What this node remembers of sagas: how they stood when they were last read or written here, and what they consist of.
//!
//! *State.* Two generations of sagas, each of so many at the most and so many bytes; definitions, each once however many sagas have it.
//!
//! *Invariants.* What is remembered was true once, and may be out of date: other nodes write as well. Whoever writes by it finds out by its
//! compare-and-set. Whoever would *not* write because of it must read the saga first, from a server that is the primary now (see
//! `store/host.rs`). What has ended is not remembered.
//!
//! *Failure.* Whatever is forgotten is read again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::saga::{Definition, Flow, State};
use crate::store::{SagaRecord, Store};

use crate::engine::lock;

/// Sagas of a generation, and definitions.
const MOST_KEPT: usize = 10_000;
/// Bytes of a generation.
const MOST_BYTES: usize = 16 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Memory {
    kept: Mutex<Generations>,
    flows: Mutex<HashMap<[u8; 16], Arc<Flow>>>,
}

/// A saga, as it was last read or written here.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) state: Arc<State>,
    /// Since when it stands as it does.
    pub(super) since: Timestamp,
    pub(super) input_hash: [u8; 16],
    /// Roughly what it takes in memory.
    pub(super) bytes: usize,
}

impl Memory {
    /// A saga as it is remembered; or as it is, if it is not or that is asked for.
    pub(super) async fn get(&self, store: &Store, id: &str, fresh: bool) -> Result<Option<Arc<State>>> {
        if !fresh && let Some(kept) = self.recall(id) {
            return Ok(Some(kept.state.clone()));
        }
        store.saga(id).await?.map(|record| self.learn(id, record)).transpose()
    }

    /// A saga as the primary has it: for whoever ends something because it is not there, or does not want something any more.
    pub(super) async fn verified(&self, store: &Store, id: &str) -> Result<Option<Arc<State>>> {
        let record = store.verified_sagas(&[id]).await?.pop();
        record.map(|record| self.learn(id, record)).transpose()
    }

    fn learn(&self, id: &str, record: SagaRecord) -> Result<Arc<State>> {
        let kept = self.read(record)?;
        let state = kept.state.clone();
        match state.ended {
            Some(_) => self.forget(id),
            None => lock(&self.kept).put_read(id, Arc::new(kept)),
        }
        Ok(state)
    }

    pub(super) fn recall(&self, id: &str) -> Option<Arc<Kept>> {
        lock(&self.kept).get(id)
    }

    /// What was written just now.
    pub(super) fn keep(&self, id: &str, kept: Kept) {
        if kept.state.ended.is_some() {
            self.forget(id);
        } else {
            lock(&self.kept).put(id, Arc::new(kept));
        }
    }

    pub(super) fn forget(&self, id: &str) {
        lock(&self.kept).remove(id);
    }

    /// What a stored saga has come to.
    pub(super) fn read(&self, record: SagaRecord) -> Result<Kept> {
        let id = record.summary.id;
        let broken = |why: String| broken(&id, why);
        let flow = self.flow(record.definition).map_err(|e| broken(e.to_string()))?;
        let mut state = State::new(flow, Arc::new(record.input));
        for journaled in &record.journal {
            let not = |illegal| broken(format!("event {} of its journal cannot be: {illegal:?}", journaled.seq));
            state.apply(&journaled.event, journaled.at).map_err(not)?;
        }
        let outputs: usize = state.steps.iter().filter_map(|s| s.output.as_ref()).map(|o| weight(o)).sum();
        let bytes = 500 + 200 * record.journal.len() + outputs + weight(&state.input);
        Ok(Kept { state: Arc::new(state), since: record.summary.since, input_hash: record.input_hash, bytes })
    }

    /// Definitions that are the same are shared.
    pub(super) fn flow(&self, definition: Definition) -> Result<Arc<Flow>> {
        let json = serde_json::to_vec(&definition).unwrap_or_default();
        let hash: [u8; 16] = blake3::hash(&json).as_bytes().first_chunk().copied().unwrap_or_default();
        if let Some(flow) = lock(&self.flows).get(&hash) {
            return Ok(flow.clone());
        }
        let flow = Arc::new(Flow::new(definition)?);
        let mut flows = lock(&self.flows);
        if flows.len() > MOST_KEPT {
            flows.clear(); // every saga its own definition: then there is nothing to share
        }
        flows.insert(hash, flow.clone());
        Ok(flow)
    }
}

pub(super) fn broken(id: &str, why: String) -> Error {
    Error::Conflict { doing: "go on with saga", id: id.into(), why }
}

/// Roughly how many bytes a value takes.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => 32 + text.len(),
        Value::Array(all) => 32 + all.iter().map(weight).sum::<usize>(),
        Value::Object(all) => 32 + all.iter().map(|(name, value)| name.len() + 32 + weight(value)).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 32,
    }
}

/// What was used lately: when the young are enough, they become the old, and the old are forgotten.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<String, Arc<Kept>>,
    old: HashMap<String, Arc<Kept>>,
    bytes: usize,
}

impl Generations {
    fn get(&mut self, id: &str) -> Option<Arc<Kept>> {
        if let Some(kept) = self.young.get(id) {
            return Some(kept.clone());
        }
        let (id, kept) = self.old.remove_entry(id)?;
        self.put(&id, kept.clone());
        Some(kept)
    }

    fn put(&mut self, id: &str, kept: Arc<Kept>) {
        if self.young.len() >= MOST_KEPT || self.bytes >= MOST_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += kept.bytes;
        self.old.remove(id);
        self.young.insert(id.to_owned(), kept);
    }

    /// What was read, unless it has been written since.
    fn put_read(&mut self, id: &str, kept: Arc<Kept>) {
        if self.get(id).is_none_or(|known| known.state.seq < kept.state.seq) {
            self.put(id, kept);
        }
    }

    fn remove(&mut self, id: &str) {
        self.young.remove(id);
        self.old.remove(id);
    }
}
