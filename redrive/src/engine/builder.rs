//! How an engine is made: what it is told, what it finds in the program and in its settings, and its start.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock, Weak};

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::cluster::Membership;
use crate::context::Context;
use crate::error::{Error, Problems, Result};
use crate::id::NameMap;
#[cfg(feature = "notify")]
use crate::notify::{Notifier, NotifyConfig};
use crate::registry::Registry;
use crate::retryable::{Registration, Retryable};
use crate::settings::{Defaults, Settings};
use crate::store::{SetField, Store};
use crate::task::Lane;

use super::gates::Gates;
use super::handler::{Handler, MethodOptions, State, Verdict};
use super::inserter::Inserter;
use super::lanes::Lanes;
use super::limits::Limits;
use super::live::{self, Live};
use super::saga::SagaSetup;
use super::settler::Settler;
use super::signals::Signals;
use super::sweep::Doubts;
use super::{Engine, EngineConfig, Shared, Waiting, Wake, lock};

/// Sets up an [`Engine`].
#[derive(Debug)]
pub struct Builder {
    pub(super) store: Store,
    pub(super) config: EngineConfig,
    pub(super) handlers: NameMap<Handler>,
    /// The methods that were given more than one handler.
    twice: BTreeSet<String>,
    pub(super) state: State,
    pub(super) defaults: Defaults,
    pub(super) settings: Settings,
    pub(super) watch: Option<PathBuf>,
    pub(super) discover: bool,
    pub(super) limits: HashMap<String, MethodOptions>,
    pub(super) split: HashSet<String>,
    pub(super) parts: HashMap<Lane, MethodOptions>,
    pub(super) by_hand: bool,
    #[cfg(feature = "notify")]
    pub(super) notify: Option<NotifyConfig>,
    pub(super) registry: Option<Arc<dyn Registry>>,
    pub(super) clock: Option<Clock>,
    pub(super) sagas: SagaSetup,
}

impl Builder {
    /// With these settings.
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// A function that executes tasks of `method`. Params that cannot be read as `P` make the task dead as *undecodable*.
    pub fn register<P, F, Fut>(self, method: impl Into<String>, f: F) -> Self
    where
        P: DeserializeOwned + 'static,
        F: Fn(Context<'static>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Verdict>> + Send + 'static,
    {
        self.register_with(method, MethodOptions::default(), f)
    }

    /// The same with limits.
    pub fn register_with<P, F, Fut>(mut self, method: impl Into<String>, options: MethodOptions, f: F) -> Self
    where
        P: DeserializeOwned + 'static,
        F: Fn(Context<'static>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Verdict>> + Send + 'static,
    {
        self.add(Handler::new(method.into(), options, f));
        self
    }

    /// Calls of a type that implements [`Retryable`]. What `#[retryable]` marks registers itself.
    pub fn handler<C: Retryable + DeserializeOwned + 'static>(mut self) -> Self {
        self.add(Handler::of::<C>());
        self
    }

    /// The same under a name of its own, with limits: calls that say it as their [`method`](Retryable::method).
    pub fn handler_as<C>(mut self, method: impl Into<String>, options: MethodOptions) -> Self
    where
        C: Retryable + DeserializeOwned + 'static,
    {
        let mut handler = Handler::of::<C>();
        (handler.method, handler.options) = (method.into(), options);
        self.add(handler);
        self
    }

    /// Adds a handler. That its method has one already is said at the start.
    pub(super) fn add(&mut self, handler: Handler) {
        if let Some(before) = self.handlers.insert(handler.method.clone(), handler) {
            self.twice.insert(before.method);
        }
    }

    /// Limits of a method, however it was registered.
    pub fn limit(mut self, method: &str, options: MethodOptions) -> Self {
        self.limits.insert(method.into(), options);
        self
    }

    /// Tasks of this method are scheduled by their [parts](crate::NewTask::part), such as the hosts that they call: each is limited by
    /// itself and has its turn, so one that hangs does not hold up the others. All nodes that handle the method must say so.
    pub fn split(mut self, method: &str) -> Self {
        self.split.insert(method.into());
        self
    }

    /// Limits of one part of a split method.
    pub fn limit_part(mut self, method: &str, part: &str, options: MethodOptions) -> Self {
        self.parts.insert(Lane::part(method, part), options);
        self
    }

    /// Whether this engine handles all methods of the program that are marked with `#[retryable]`. Default: yes.
    pub fn discover(mut self, discover: bool) -> Self {
        self.discover = discover;
        self
    }

    /// A value for handlers: they find it by its type, with [`Context::state`].
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state.put(value);
        self
    }

    /// What holds for calls and tasks that do not say otherwise.
    pub fn defaults(mut self, defaults: Defaults) -> Self {
        self.defaults = defaults;
        self
    }

    /// How people are told that tasks keep failing. Without it notices are written and wait for a node that has this.
    #[cfg(feature = "notify")]
    pub fn notify(mut self, config: NotifyConfig) -> Self {
        self.notify = Some(config);
        self
    }

    /// How nodes find each other, instead of as the settings say: by the database.
    pub fn registry(mut self, registry: impl Registry + 'static) -> Self {
        self.registry = Some(Arc::new(registry));
        self
    }

    /// By this clock instead of the database's: for tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Adds what registered itself, and the limits.
    fn gather(&mut self) -> Result<()> {
        let mut seen = HashMap::new();
        for found in inventory::iter::<Registration>.into_iter().filter(|_| self.discover) {
            if seen.insert(found.method(), ()).is_some() {
                let twice = format!(
                    "{:?} is the name of two #[retryable] functions; give one of them another `name`",
                    found.method()
                );
                return Err(Error::invalid("method", twice));
            }
            self.handlers.entry(found.method().into()).or_insert_with(|| found.handler());
        }
        for (method, options) in std::mem::take(&mut self.limits) {
            let unknown = || Error::invalid("limit", format!("there is no handler of {method:?}"));
            self.handlers.get_mut(&method).ok_or_else(unknown)?.options = options;
        }
        for method in std::mem::take(&mut self.split) {
            let unknown = || Error::invalid("split", format!("there is no handler of {method:?}"));
            self.handlers.get_mut(&method).ok_or_else(unknown)?.is_split = true;
        }
        Ok(())
    }

    /// Tasks wait until they are told to run: for [`testing`](crate::testing).
    pub(crate) fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    fn validate(&self) -> Result<()> {
        self.config.validate()?;
        let mut problems = Problems::default();
        self.handlers.values().for_each(|h| h.options.check(&h.method, &mut problems));
        for method in &self.twice {
            problems.add("method", format!("{method:?} has two handlers; give one of them another name"));
        }
        #[cfg(feature = "notify")]
        self.notify.iter().for_each(|notify| problems.nest("notify", notify.problems()));
        problems.into_result()
    }

    /// The limits to begin with, and whether anything has a gate.
    fn limits(&self, live: &Live, set: Vec<SetField>, now: Timestamp) -> (Limits, bool) {
        let limits_of = live.limits_with(set);
        let methods = || self.handlers.values().map(|h| (Lane::of(&h.method), limits_of(h)));
        let has_gates =
            methods().any(|(_, options)| options.has_gate()) || self.parts.values().any(MethodOptions::has_gate);
        (Limits::new(self.config.concurrency, methods(), now), has_gates)
    }

    /// Becomes a node and begins to work. A method has one handler, and a saga a name of its own: two are an error. (What is
    /// given to the builder goes before what registered itself.)
    pub async fn start(self) -> Result<Engine> {
        Box::pin(self.become_node()).await // it is large, and done once
    }

    async fn become_node(mut self) -> Result<Engine> {
        let (live, watcher) = self.resolve()?;
        let sagas = self.gather_sagas()?;
        self.gather()?;
        self.validate()?;
        let clock = match self.clock.take() {
            Some(clock) => clock,
            None => Clock::starting_at(self.store.now().await?),
        };
        let set = self.store.set_fields().await?;
        let (limits, has_gates) = self.limits(&live, set, clock.now());
        let lanes = Lanes::of(self.handlers.values())?;
        let limits = limits.split(lanes.split().clone(), self.parts);
        let signals = Signals::new(self.handlers.keys());
        let waiting = Waiting::new(clock.now(), self.config.prefetch);
        #[cfg(feature = "notify")]
        let notifier = self.notify.map(|config| Notifier::new(self.store.clone(), config)).transpose()?;
        let registry = self.registry.map_or_else(|| live.registry().open(&self.store), Ok)?;
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            store: self.store.knowing(shared.clone()),
            clock,
            config: self.config,
            handlers: self.handlers,
            state: self.state,
            defaults: RwLock::new(Arc::new(self.defaults)),
            live,
            #[cfg(feature = "notify")]
            notifier,
            lanes,
            me: Membership::new(),
            registry,
            owned: RwLock::default(),
            viewing: tokio::sync::Mutex::default(),
            following: tokio::sync::Mutex::default(),
            waiting: Mutex::new(waiting),
            running: Mutex::default(),
            limits: Mutex::new(limits),
            inserter: Inserter::default(),
            settler: Settler::default(),
            sagas,
            signals,
            gates: Gates::default(),
            has_gates,
            has_pauses: AtomicBool::new(false),
            has_paces: AtomicBool::new(false),
            by_hand: self.by_hand,
            wake: Wake::default(),
            stopping: CancellationToken::new(),
            gate: AtomicBool::new(!self.by_hand),
            doubts: Doubts::default(),
            settled: AtomicU64::new(0),
            pulse: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            services: Mutex::default(),
        });
        shared.become_a_node().await?;
        watcher.into_iter().for_each(|watcher| _ = lock(&shared.services).spawn(live::run(shared.clone(), watcher)));
        Ok(Engine(shared))
    }
}

impl Engine {
    /// An engine on this store.
    pub fn builder(store: Store) -> Builder {
        Builder {
            store,
            config: EngineConfig::default(),
            handlers: NameMap::default(),
            twice: BTreeSet::new(),
            state: State::default(),
            defaults: Defaults::default(),
            settings: Settings::default(),
            watch: None,
            discover: true,
            limits: HashMap::new(),
            split: HashSet::new(),
            parts: HashMap::new(),
            by_hand: false,
            #[cfg(feature = "notify")]
            notify: None,
            registry: None,
            clock: None,
            sagas: SagaSetup::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::saga::Saga;

    async fn builder() -> Builder {
        Engine::builder(Store::open("sqlite::memory:").await.unwrap())
    }

    async fn said(builder: Builder) -> String {
        match builder.start().await {
            Ok(engine) => {
                engine.stop().await;
                "started".into()
            }
            Err(e) => e.to_string(),
        }
    }

    #[tokio::test]
    async fn a_method_has_one_handler() {
        let handler = async |_: Context<'static>, _: u64| Ok(());
        let twice = builder().await.register("pay", handler).register("refund", handler).register("pay", handler);
        let said = said(twice.register_with("refund", MethodOptions::default(), handler)).await;
        for method in ["pay", "refund"] {
            let part = format!("{method:?} has two handlers; give one of them another name");
            assert!(said.contains(&part), "{part} is missing in: {said}");
        }
    }

    #[tokio::test]
    async fn two_sagas_have_two_names() {
        let saga = |name: &str| Saga::<()>::new(name).sleep("night", Duration::from_secs(3600));
        let twice = said(builder().await.saga(saga("trip")).saga(saga("stay")).saga(saga("trip"))).await;
        assert!(twice.contains(r#""trip" is the name of two sagas; give one of them another"#), "{twice}");
        assert_eq!(said(builder().await.saga(saga("trip")).saga(saga("stay"))).await, "started");
    }
}
