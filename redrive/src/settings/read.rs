//! The tree of what was said as [`Settings`], or all that is wrong with it: every field is read by itself, so that one that
//! is wrong does not hide the next.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::duration;
use crate::engine::{EngineConfig, Rate};
use crate::error::{Error, Problems, Result};

use super::patch::FIELDS;
use super::sources::{OF_METHOD, Sources, TOP, engine_fields, join, problems_of, scrubbed, unknown};
use super::targets::OF_TARGET;
use super::{MethodSettings, PolicyPatch, Settings, TargetSettings};

impl Sources {
    /// The settings.
    pub(super) fn settings(mut self) -> Result<Settings> {
        let mut settings = Settings::default();
        for (name, value) in std::mem::take(&mut self.tree) {
            match name.as_str() {
                "database" => self.field(&name, value).into_iter().for_each(|url| settings.database = url),
                "persist" => self.field(&name, value).into_iter().for_each(|persist| settings.persist = persist),
                "engine" => settings.engine = self.engine(value),
                "defaults" => settings.defaults = self.patch(&name, value),
                "methods" => {
                    for (method, value) in self.fields_of(&name, value) {
                        let read = self.method(&join(&name, &method), value);
                        settings.methods.insert(method, read);
                    }
                }
                "encryption" => settings.encryption = self.field(&name, value),
                "registry" => settings.registry = self.field(&name, value).unwrap_or_default(),
                "retention" => settings.retention = self.field(&name, value).unwrap_or_default(),
                "server" => settings.server = self.field(&name, value).unwrap_or_default(),
                "http" => settings.http = self.field(&name, value).unwrap_or_default(),
                "targets" => {
                    for (target, value) in self.fields_of(&name, value) {
                        let read = self.target(&join(&name, &target), value);
                        settings.targets.insert(target, read);
                    }
                }
                "guard" => settings.guard = self.field(&name, value).unwrap_or_default(),
                "guards" => {
                    for (guard, value) in self.fields_of(&name, value) {
                        let read = self.field(&join(&name, &guard), value);
                        read.into_iter().for_each(|read| _ = settings.guards.insert(guard.clone(), read));
                    }
                }
                #[cfg(feature = "notify")]
                "notify" => settings.notify = self.field(&name, value),
                _ => self.note(&join("", &name), unknown(&name, TOP)),
            }
        }
        if let Err(e) = settings.validate() {
            problems_of(e).iter().for_each(|(path, problem)| self.note(path, problem));
        }
        self.problems.into_result()?;
        Ok(settings)
    }

    /// A value of which it is enough to say that it cannot be read.
    fn field<T: DeserializeOwned>(&mut self, path: &str, value: Value) -> Option<T> {
        self.try_field(path, value, |value| {
            serde_json::from_value(value).map_err(|e| Error::invalid(path, e.to_string()))
        })
    }

    /// A field: as it was said or, if that is not it and it was said in a variable, as the variable's text.
    fn try_field<T>(&mut self, path: &str, value: Value, mut read: impl FnMut(Value) -> Result<T>) -> Option<T> {
        let e = match read(value) {
            Ok(read) => return Some(read),
            Err(e) => e,
        };
        if let Some(Ok(read)) = self.raw(path).map(|raw| read(raw.into())) {
            return Some(read);
        }
        problems_of(e).iter().for_each(|(path, problem)| self.note(path, problem));
        None
    }

    fn fields_of(&mut self, path: &str, value: Value) -> Map<String, Value> {
        match value {
            Value::Object(fields) => fields,
            _ => {
                self.note(path, format!("must be a table: [{path}]"));
                Map::new()
            }
        }
    }

    /// The engine's fields. If one cannot be read, all have their defaults: whether they go together is then not asked.
    fn engine(&mut self, value: Value) -> EngineConfig {
        let (mut good, mut all, known) = (Map::new(), true, engine_fields());
        for (name, value) in self.fields_of("engine", value) {
            let path = join("engine", &name);
            if !known.contains(&name) {
                self.note(&path, unknown(&name, &known));
                continue;
            }
            let read = self.try_field(&path, value, |value| {
                let one = Map::from_iter([(name.clone(), value.clone())]);
                let config = serde_json::from_value::<EngineConfig>(one.into());
                config.map(|_| value).map_err(|e| Error::invalid(&path, e.to_string()))
            });
            all &= read.is_some();
            good.extend(read.map(|value| (name, value)));
        }
        let read = if all { serde_json::from_value(good.into()).ok() } else { None };
        read.unwrap_or_default()
    }

    fn patch(&mut self, path: &str, value: Value) -> PolicyPatch {
        let mut patch = PolicyPatch::default();
        for (name, value) in self.fields_of(path, value) {
            self.patch_field(path, &mut patch, &name, value);
        }
        patch
    }

    fn patch_field(&mut self, path: &str, patch: &mut PolicyPatch, name: &str, value: Value) {
        self.try_field(&join(path, name), value, |value| {
            patch.set(name, value).map_err(|e| {
                let mut problems = Problems::default();
                problems.nest(path, problems_of(e));
                Error::Invalid(problems)
            })
        });
    }

    fn method(&mut self, path: &str, value: Value) -> MethodSettings {
        let mut method = MethodSettings::default();
        for (name, value) in self.fields_of(path, value) {
            let at = join(path, &name);
            match name.as_str() {
                "persist" => method.persist = self.field(&at, value),
                "concurrency" => method.concurrency = self.field(&at, value),
                "per_business" => method.per_business = self.field(&at, value),
                "rate" => method.rate = self.field(&at, value).map(|rate: RateForm| rate.into()),
                "gate" => method.gate = self.field(&at, value),
                field if FIELDS.contains(&field) => self.patch_field(path, &mut method.policy, field, value),
                _ => {
                    let known: Vec<&str> = OF_METHOD.iter().chain(FIELDS).copied().collect();
                    self.note(&at, unknown(&name, &known));
                }
            }
        }
        method
    }

    fn target(&mut self, path: &str, value: Value) -> TargetSettings {
        let mut target = TargetSettings::default();
        for (name, value) in self.fields_of(path, value) {
            let at = join(path, &name);
            match name.as_str() {
                "base_url" => target.base_url = self.field(&at, value).unwrap_or_default(),
                "headers" => target.headers = self.field(&at, value).unwrap_or_default(),
                "signing_secret" => target.signing_secret = self.field(&at, value),
                "concurrency" => target.concurrency = self.field(&at, value),
                "rate" => target.rate = self.field(&at, value).map(|rate: RateForm| rate.into()),
                "gate" => target.gate = self.field(&at, value),
                "allow_private" => target.allow_private = self.field(&at, value).unwrap_or_default(),
                field if FIELDS.contains(&field) => self.patch_field(path, &mut target.policy, field, value),
                _ => {
                    let known: Vec<&str> = OF_TARGET.iter().chain(FIELDS).copied().collect();
                    self.note(&at, unknown(&name, &known));
                }
            }
        }
        target
    }
}

impl TryFrom<Map<String, Value>> for MethodSettings {
    type Error = Error;

    fn try_from(fields: Map<String, Value>) -> Result<Self> {
        let (own, policy): (Map<_, _>, Map<_, _>) =
            fields.into_iter().partition(|(name, _)| OF_METHOD.contains(&name.as_str()));
        let own: OwnForm =
            serde_json::from_value(own.into()).map_err(|e| Error::invalid("method", scrubbed(&e.to_string())))?;
        let OwnForm { persist, concurrency, per_business, rate, gate } = own;
        Ok(Self { policy: policy.try_into()?, persist, concurrency, per_business, rate: rate.map(Into::into), gate })
    }
}

/// What a method has beside its policy, as it is written.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnForm {
    persist: Option<crate::Persist>,
    concurrency: Option<usize>,
    per_business: Option<usize>,
    rate: Option<RateForm>,
    gate: Option<crate::gate::GateConfig>,
}

/// A rate as it is written: `{ tasks = 100, per = "1s" }`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateForm {
    tasks: u32,
    #[serde(with = "duration")]
    per: Duration,
}

impl From<RateForm> for Rate {
    fn from(form: RateForm) -> Self {
        Self { tasks: form.tasks, per: form.per }
    }
}

pub(super) fn write_rate<S: Serializer>(rate: &Option<Rate>, s: S) -> Result<S::Ok, S::Error> {
    rate.map(|Rate { tasks, per }| RateForm { tasks, per }).serialize(s)
}
