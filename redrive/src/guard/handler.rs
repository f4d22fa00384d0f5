//! What the application does about a row, and the same for any type of id.

use std::pin::Pin;
use std::sync::Arc;

use super::table::GuardedTable;
use super::value::{GuardId, RowId};

/// What handlers fail with: anything.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What to do about a row that has become abnormal.
///
/// Whatever it does must bear being done twice: a process may die after it and before that is written down.
///
/// ```
/// use redrive::guard::{BoxError, GuardHandler};
///
/// struct Bills;
///
/// impl GuardHandler for Bills {
///     type Id = i64;
///
///     async fn check_status(&self, id: &i64) -> Result<bool, BoxError> {
///         Ok(*id == 7) // ask the bank whether the bill is paid
///     }
///
///     async fn handle(&self, id: &i64) -> Result<bool, BoxError> {
///         Ok(*id == 8) // pay it
///     }
///
///     fn manual_success_route(&self) -> String {
///         "/api/user/admin/manual-bill-success".into()
///     }
/// }
/// ```
pub trait GuardHandler: Send + Sync + 'static {
    /// How rows are known: `i64`, `String`, `Uuid` or [`RowId`].
    type Id: GuardId;

    /// Whether the business has already succeeded. It is asked before and after [`handle`](Self::handle). An error counts as
    /// "not successful", and then `handle` is not run: the retry has failed.
    fn check_status(&self, id: &Self::Id) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// Retries once. An error, a panic or taking longer than `handle_timeout` counts as `false`. Whatever it says,
    /// `check_status` has the last word.
    fn handle(&self, id: &Self::Id) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// The route, for POST, by which a person says that a row has been put right by hand. Empty: there is none.
    fn manual_success_route(&self) -> String;

    /// What is done when a person has said so. By default
    /// [`processing_successful`](GuardedTable::processing_successful).
    fn manual_success(&self, table: &GuardedTable, id: &Self::Id) -> impl Future<Output = Result<(), BoxError>> + Send {
        let id = id.to_row();
        async move { Ok(table.processing_successful(id).await?) }
    }
}

impl<H: GuardHandler> GuardHandler for Arc<H> {
    type Id = H::Id;

    fn check_status(&self, id: &Self::Id) -> impl Future<Output = Result<bool, BoxError>> + Send {
        (**self).check_status(id)
    }
    fn handle(&self, id: &Self::Id) -> impl Future<Output = Result<bool, BoxError>> + Send {
        (**self).handle(id)
    }
    fn manual_success_route(&self) -> String {
        (**self).manual_success_route()
    }
    fn manual_success(&self, table: &GuardedTable, id: &Self::Id) -> impl Future<Output = Result<(), BoxError>> + Send {
        (**self).manual_success(table, id)
    }
}

pub(super) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'a>>;

/// A handler, whatever its ids are.
pub(super) trait Handler: Send + Sync {
    fn check_status<'a>(&'a self, id: &'a RowId) -> Answer<'a, bool>;
    fn handle<'a>(&'a self, id: &'a RowId) -> Answer<'a, bool>;
    fn manual_success_route(&self) -> String;
    fn manual_success<'a>(&'a self, table: &'a GuardedTable, id: &'a RowId) -> Answer<'a, ()>;
}

impl<H: GuardHandler> Handler for H {
    fn check_status<'a>(&'a self, id: &'a RowId) -> Answer<'a, bool> {
        Box::pin(async move { GuardHandler::check_status(self, &H::Id::from_row(id)?).await })
    }
    fn handle<'a>(&'a self, id: &'a RowId) -> Answer<'a, bool> {
        Box::pin(async move { GuardHandler::handle(self, &H::Id::from_row(id)?).await })
    }
    fn manual_success_route(&self) -> String {
        GuardHandler::manual_success_route(self)
    }
    fn manual_success<'a>(&'a self, table: &'a GuardedTable, id: &'a RowId) -> Answer<'a, ()> {
        Box::pin(async move { GuardHandler::manual_success(self, table, &H::Id::from_row(id)?).await })
    }
}
