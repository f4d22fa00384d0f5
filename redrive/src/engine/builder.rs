//! How an engine is made: what it is told, what it finds in the program and in its settings, and its start.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::cluster::Membership;
use crate::context::Context;
use crate::error::{Error, Problems, Result};
use crate::id::NameMap;
#[cfg(feature = "notify")]
use crate::notify::{Notifier, NotifyConfig};
use crate::registry::Registry;
use crate::retryable::{Registration, Retryable};
use crate::settings::{Defaults, Settings};
use crate::store::Store;
use crate::task::Lane;

use super::gates::Gates;
use super::handler::{Handler, MethodOptions, State, Verdict};
use super::inserter::Inserter;
use super::lanes::Lanes;
use super::limits::Limits;
use super::saga::SagaSetup;
use super::settler::Settler;
use super::signals::Signals;
use super::{Engine, EngineConfig, Shared, Waiting, Wake, live, lock};

/// Sets up an [`Engine`].
#[derive(Debug)]
pub struct Builder {
    pub(super) store: Store,
    pub(super) config: EngineConfig,
    pub(super) handlers: NameMap<Handler>,
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
        let method = method.into();
        self.handlers.insert(method.clone(), Handler::new(method, options, f));
        self
    }

    /// Calls of a type that implements [`Retryable`]. What `#[retryable]` marks registers itself.
    pub fn handler<C: Retryable + DeserializeOwned + 'static>(mut self) -> Self {
        self.handlers.insert(C::METHOD.into(), Handler::of::<C>());
        self
    }

    /// The same under a name of its own, with limits: calls that say it as their [`method`](Retryable::method).
    pub fn handler_as<C>(mut self, method: impl Into<String>, options: MethodOptions) -> Self
    where
        C: Retryable + DeserializeOwned + 'static,
    {
        let mut handler = Handler::of::<C>();
        (handler.method, handler.options) = (method.into(), options);
        self.handlers.insert(handler.method.clone(), handler);
        self
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
        #[cfg(feature = "notify")]
        self.notify.iter().for_each(|notify| problems.nest("notify", notify.problems()));
        problems.into_result()
    }

    /// Becomes a node and begins to work.
    pub async fn start(mut self) -> Result<Engine> {
        let (live, watcher) = self.resolve()?;
        let sagas = self.gather_sagas()?;
        self.gather()?;
        self.validate()?;
        let clock = match self.clock {
            Some(clock) => clock,
            None => Clock::starting_at(self.store.now().await?),
        };
        let methods = || self.handlers.values().map(|h| (Lane::of(&h.method), live.limits_of(h)));
        let lanes = Lanes::of(self.handlers.values())?;
        let has_gates =
            methods().any(|(_, options)| options.has_gate()) || self.parts.values().any(MethodOptions::has_gate);
        let limits = Limits::new(self.config.concurrency, methods(), clock.now());
        let limits = limits.split(lanes.split().clone(), self.parts);
        let signals = Signals::new(self.handlers.keys());
        let waiting = Waiting::new(clock.now(), self.config.prefetch);
        #[cfg(feature = "notify")]
        let notifier = self.notify.map(|config| Notifier::new(self.store.clone(), config)).transpose()?;
        let registry = self.registry.map_or_else(|| live.registry().open(&self.store), Ok)?;
        let shared = Arc::new(Shared {
            store: self.store,
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
            waiting: Mutex::new(waiting),
            running: Mutex::default(),
            limits: Mutex::new(limits),
            inserter: Inserter::default(),
            settler: Settler::default(),
            sagas,
            signals,
            gates: Gates::default(),
            has_gates,
            wake: Wake::default(),
            stopping: CancellationToken::new(),
            gate: AtomicBool::new(!self.by_hand),
            has_lost_nodes: AtomicBool::new(true), // before we were there
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
