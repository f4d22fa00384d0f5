//! The routes of guards, for axum: a POST for each guard by which people say that a row has been put right, and the list.
//!
//! Every answer is `{"code": …, "msg": …, "data": …}`, errors too, with the same code as HTTP's status. Whoever calls must be
//! an operator: by a token of the store's, or by what the application itself asks for. A route that is taken already is left
//! out with a warning: another guard's, the list's, or one of [`taken_routes`](super::GuardsBuilder::taken_routes).

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Form, FromRequest, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use serde::Serialize;

use crate::error::Error;
use crate::store::{AuditEntry, Role};

use super::list::{LIST_ROUTE, ListRequest};
use super::{Guards, Slot};

/// Who calls: the name that the audit gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(pub String);

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Envelope {
    /// 200, or what HTTP's status is.
    pub code: u16,
    /// For people.
    pub msg: String,
    /// What was asked for.
    pub data: serde_json::Value,
}

impl Envelope {
    /// A good answer.
    pub fn good(msg: impl Into<String>, data: impl Into<serde_json::Value>) -> Self {
        Self { code: 200, msg: msg.into(), data: data.into() }
    }

    /// A refusal.
    pub fn bad(status: StatusCode, msg: impl Into<String>) -> Self {
        Self { code: status.as_u16(), msg: msg.into(), data: serde_json::Value::Null }
    }
}

impl From<&Error> for Envelope {
    fn from(e: &Error) -> Self {
        let status = match e {
            Error::Invalid(_) => StatusCode::BAD_REQUEST,
            Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::Conflict { .. } => StatusCode::CONFLICT,
            Error::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            e if e.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            Error::Database { .. } | Error::Schema(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::bad(status, e.to_string())
    }
}

impl IntoResponse for Envelope {
    fn into_response(self) -> Response {
        (StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self)).into_response()
    }
}

type Asking = Pin<Box<dyn Future<Output = Result<Caller, Envelope>> + Send>>;

/// Says who calls, or refuses.
#[derive(Clone)]
struct Door(Arc<dyn Fn(Parts) -> Asking + Send + Sync>);

impl Guards {
    /// The routes, for operators: `Authorization: Bearer` with a token of the store's.
    pub fn router(&self) -> Router {
        let guards = self.clone();
        self.router_with(move |parts| {
            let guards = guards.clone();
            async move { guards.operator(&parts).await }
        })
    }

    /// The routes without any question: for applications that ask themselves, in a layer around them. The audit has this name.
    pub fn router_open(&self, by: impl Into<String>) -> Router {
        let caller = Caller(by.into());
        self.router_with(move |_| std::future::ready(Ok(caller.clone())))
    }

    /// The routes; `ask` says who calls, or refuses.
    pub fn router_with<F, A>(&self, ask: F) -> Router
    where
        F: Fn(Parts) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Caller, Envelope>> + Send + 'static,
    {
        let door = Door(Arc::new(move |parts| Box::pin(ask(parts))));
        let mut router = Router::new().route(LIST_ROUTE, list_route(self.clone(), door.clone()));
        for (route, slot) in self.routes() {
            router = router.route(&route, manual_route(self.clone(), slot, door.clone()));
        }
        router
    }

    /// The routes of guards that can be had; the others are warned of.
    fn routes(&self) -> Vec<(String, Arc<Slot>)> {
        let mut taken: BTreeSet<String> = self.0.taken_routes.iter().cloned().collect();
        taken.insert(LIST_ROUTE.into());
        let mut routes = Vec::new();
        for slot in &self.0.slots {
            let route = slot.handler.manual_success_route().trim().to_owned();
            if route.is_empty() {
                continue;
            }
            if let Err(why) = check_route(&route) {
                tracing::warn!(guard = slot.guard.name(), route, "this is no route ({why}): it is left out");
            } else if taken.insert(route.clone()) {
                routes.push((route, slot.clone()));
            } else {
                tracing::warn!(guard = slot.guard.name(), route, "the route is taken already: it is left out");
            }
        }
        routes
    }

    /// A caller with the token of an operator.
    async fn operator(&self, parts: &Parts) -> Result<Caller, Envelope> {
        let shared = &self.0.shared;
        let sent = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = match sent.and_then(|sent| sent.strip_prefix("Bearer ")) {
            Some(sent) => {
                shared.store.find_token(sent.trim(), shared.clock.now()).await.map_err(|e| Envelope::from(&e))?
            }
            None => None,
        };
        let Some(token) = token else {
            let why = "no token that is known and good: send one as `Authorization: Bearer rdr_…`";
            self.refuse("unknown", parts, why).await;
            return Err(Envelope::bad(StatusCode::UNAUTHORIZED, why));
        };
        if token.role < Role::Operator {
            let why = format!("this takes an operator, the token is of a {}", token.role.as_str());
            self.refuse(&token.name, parts, &why).await;
            return Err(Envelope::bad(StatusCode::FORBIDDEN, why));
        }
        Ok(Caller(token.name))
    }

    /// The audit knows of it. That it could not be told is no reason to let anybody in.
    async fn refuse(&self, who: &str, parts: &Parts, why: &str) {
        let shared = &self.0.shared;
        let entry = AuditEntry::new(who, "guard.post", parts.uri.path()).refused(why);
        if let Err(e) = shared.store.audit(&entry, shared.clock.now()).await {
            tracing::warn!(error = %e, who, why, "a refused call could not be written to the audit");
        }
    }

    /// A person's word about a row.
    async fn manual(&self, slot: &Slot, by: &Caller, id: &str) -> Result<Envelope, Error> {
        let Some(table) = self.get(slot.guard.name()) else {
            return Err(Error::Schema(format!(
                "the guard {} cannot work: {}",
                slot.guard.name(),
                slot.as_broken().why
            )));
        };
        let id = table.manual_success(id, &by.0).await?;
        Ok(Envelope::good("人工处理成功", serde_json::json!(id)))
    }
}

fn list_route(guards: Guards, door: Door) -> MethodRouter {
    let answer = move |request: Request| {
        let (guards, door) = (guards.clone(), door.clone());
        async move {
            let (parts, body) = request.into_parts();
            if let Err(refused) = (door.0)(parts.clone()).await {
                return refused;
            }
            let body = match Bytes::from_request(Request::from_parts(parts, body), &()).await {
                Ok(body) => body,
                Err(e) => return Envelope::bad(e.status(), e.body_text()),
            };
            list(&guards, &body).await.unwrap_or_else(|e| Envelope::from(&e))
        }
    };
    post(answer).fallback(only_post)
}

async fn list(guards: &Guards, body: &[u8]) -> Result<Envelope, Error> {
    let request: ListRequest = match body.trim_ascii() {
        [] => ListRequest::default(),
        body => serde_json::from_slice(body).map_err(|e| Error::invalid("request", e.to_string()))?,
    };
    let page = guards.list(&request).await?;
    Ok(Envelope::good("获取成功", serde_json::json!(page)))
}

fn manual_route(guards: Guards, slot: Arc<Slot>, door: Door) -> MethodRouter {
    let answer = move |request: Request| {
        let (guards, slot, door) = (guards.clone(), slot.clone(), door.clone());
        async move {
            let (parts, body) = request.into_parts();
            let caller = match (door.0)(parts.clone()).await {
                Ok(caller) => caller,
                Err(refused) => return refused,
            };
            let Some(id) = data_id(Request::from_parts(parts, body)).await else {
                return Envelope::bad(StatusCode::BAD_REQUEST, "dataId is missing: give it in the query or as a form");
            };
            guards.manual(&slot, &caller, &id).await.unwrap_or_else(|e| Envelope::from(&e))
        }
    };
    post(answer).fallback(only_post)
}

/// `dataId` of the query, else of the form.
async fn data_id(request: Request) -> Option<String> {
    type Fields = HashMap<String, String>;
    let asked = Query::<Fields>::try_from_uri(request.uri()).ok().and_then(|Query(mut fields)| fields.remove("dataId"));
    let given = match asked {
        Some(id) => Some(id),
        None => {
            Form::<Fields>::from_request(request, &()).await.ok().and_then(|Form(mut fields)| fields.remove("dataId"))
        }
    };
    given.filter(|id| !id.trim().is_empty())
}

async fn only_post() -> Envelope {
    Envelope::bad(StatusCode::METHOD_NOT_ALLOWED, "this is for POST")
}

/// What axum would not take.
fn check_route(route: &str) -> Result<(), &'static str> {
    let path = route.strip_prefix('/').ok_or("it must begin with /")?;
    if path.contains(['{', '}', '*', '?', '#']) || path.contains(char::is_whitespace) {
        return Err("it must be a plain path");
    }
    if path.split('/').any(|part| part.starts_with(':')) {
        return Err("it must have no parameters");
    }
    Ok(())
}
