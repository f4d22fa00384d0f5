//! The list of abnormal rows of all guards, as `POST /api/admin/abnormal/list` gives it.
//!
//! Guards may be in different databases. So each gives the keys of its first rows, as many as the page and those before it;
//! they are merged by `err_start_time` and id, and only the rows of the page are read whole.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::store::db::{Row, query};
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};

use super::Guards;
use super::catalogue::Catalogue;
use super::rows::Shapes;
use super::sql::Condition;
use super::table::{GuardedTable, Inner};
use super::value::RowId;

/// The route of the list.
pub const LIST_ROUTE: &str = "/api/admin/abnormal/list";

/// Rows on a page at the most.
const MOST_ON_PAGE: u64 = 500;
/// How far into the list one can look: keys up to there are merged in memory.
const MOST_INTO: u64 = 100_000;

/// What is asked for. Of a single value and a list that are both given, both count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListRequest {
    /// The page, from 1. Default: 1.
    pub page_num: u64,
    /// Rows on a page, up to 500. Default: 20.
    pub page_size: u64,
    /// Of this service. Default: of all.
    pub service_name: Option<String>,
    /// Of these services.
    pub service_name_list: Option<Vec<String>>,
    /// With this `err_status`. Default: with any but NULL and 2000.
    pub err_status: Option<i64>,
    /// With one of these.
    pub err_status_list: Option<Vec<i64>>,
}

impl Default for ListRequest {
    fn default() -> Self {
        Self {
            page_num: 1,
            page_size: 20,
            service_name: None,
            service_name_list: None,
            err_status: None,
            err_status_list: None,
        }
    }
}

/// A page of the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPage {
    /// Rows with all their columns, and beside them `table`, `serviceName` and `manualSuccessRoute`.
    pub records: Vec<Map<String, Json>>,
    /// How many there are on all pages.
    pub total: u64,
    /// The page.
    pub page_num: u64,
    /// Rows on a page.
    pub page_size: u64,
    /// All registered services.
    pub service_names: Vec<String>,
    /// What the columns of the tables on this page are.
    pub column_comments: BTreeMap<String, BTreeMap<String, String>>,
}

impl ListRequest {
    fn offset(&self) -> Result<u64> {
        let fits = self.page_num >= 1 && (1..=MOST_ON_PAGE).contains(&self.page_size);
        if !fits {
            let said = format!("pages are counted from 1 and have from 1 to {MOST_ON_PAGE} rows");
            return Err(Error::invalid("pageNum, pageSize", said));
        }
        let offset = (self.page_num - 1).saturating_mul(self.page_size);
        if offset > MOST_INTO {
            let said = format!("the list can be seen up to row {MOST_INTO}; ask for one service or one status");
            return Err(Error::invalid("pageNum", said));
        }
        Ok(offset)
    }

    fn wants(&self, service: &str) -> bool {
        let single = self.service_name.as_deref().filter(|name| !name.is_empty());
        let list = self.service_name_list.as_deref().unwrap_or_default();
        (single.is_none() && list.is_empty()) || single == Some(service) || list.iter().any(|name| name == service)
    }

    fn condition(&self) -> Condition {
        let mut codes: Vec<i64> = self.err_status_list.clone().unwrap_or_default();
        codes.extend(self.err_status);
        if codes.is_empty() {
            return Condition::new("err_status IS NOT NULL AND err_status <> 2000");
        }
        let codes = codes.iter().map(ToString::to_string).collect::<Vec<_>>();
        Condition::new(format!("err_status IN ({})", codes.join(", ")))
    }
}

/// Where a row stands in the list: rows without a time come last.
type Key = (bool, i64, RowId);

impl Guards {
    /// A page of the list of abnormal rows.
    pub async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.listed(request, None).await
    }

    /// The same without counting all of them: `total` says whether there is more than this page, and no more than that.
    pub async fn look(&self, request: &ListRequest) -> Result<ListPage> {
        let end = request.offset()? + request.page_size;
        self.listed(request, Some(end + 1)).await
    }

    async fn listed(&self, request: &ListRequest, most: Option<u64>) -> Result<ListPage> {
        let offset = request.offset()?;
        let tables: Vec<_> = self.all().into_iter().filter(|table| request.wants(table.service_name())).collect();
        let condition = request.condition();
        let reach = offset + request.page_size;
        let asked = tables.iter().map(|table| table.keys(&condition, reach, most));
        let answers = futures_util::future::try_join_all(asked).await?;
        let total = answers.iter().map(|(total, _)| total).sum();
        let keys = answers.into_iter().enumerate().flat_map(|(n, (_, keys))| keys.into_iter().map(move |key| (key, n)));
        let mut keys: Vec<(Key, usize)> = keys.collect();
        keys.sort_by_key(|(key, _)| place(key)); // stable: what is equal stays in the database's order
        let page: Vec<_> = keys.into_iter().skip(index(offset)).take(index(request.page_size)).collect();
        let (records, column_comments) = records(&tables, &page).await?;
        Ok(ListPage {
            records,
            total,
            page_num: request.page_num,
            page_size: request.page_size,
            service_names: self.service_names(),
            column_comments,
        })
    }
}

/// Texts are not compared: each database has its own order for them.
fn place((no_time, start, id): &Key) -> (bool, i64, Option<i64>) {
    let id = if let RowId::Int(id) = id { Some(*id) } else { None };
    (*no_time, *start, id)
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

type Records = (Vec<Map<String, Json>>, BTreeMap<String, BTreeMap<String, String>>);

/// The rows of a page, whole and in its order, and what their columns are.
async fn records(tables: &[GuardedTable], page: &[(Key, usize)]) -> Result<Records> {
    let mut found = HashMap::new();
    let mut comments = BTreeMap::<String, BTreeMap<String, String>>::new();
    for (n, table) in tables.iter().enumerate() {
        let ids: Vec<_> = page.iter().filter(|(_, of)| *of == n).map(|((_, _, id), _)| id.clone()).collect();
        if ids.is_empty() {
            continue;
        }
        let catalogue = Catalogue::read(&table.0.db, &table.0.guard).await?;
        comments.entry(table.table_name().to_owned()).or_default().extend(catalogue.comments(&table.0.guard));
        let rows = table.records(&catalogue, &ids).await?;
        found.extend(rows.into_iter().map(|(id, row)| ((n, id), row)));
    }
    // One that was deleted meanwhile is left out.
    let records = page.iter().filter_map(|((_, _, id), n)| found.remove(&(*n, id.clone())));
    Ok((records.collect(), comments))
}

impl GuardedTable {
    /// How many rows there are, and the keys of the first.
    async fn keys(&self, condition: &Condition, reach: u64, most: Option<u64>) -> Result<(u64, Vec<Key>)> {
        let Inner { sql, db, .. } = &*self.0;
        let doing = format!("listing abnormal rows of {}", self.table_name());
        let columns = format!("{}, {}", sql.id_text(), sql.epoch("err_start_time"));
        let order = format!("ORDER BY err_start_time IS NULL, err_start_time, {}", sql.id.quoted);
        retrying!(db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let count = most.map_or_else(|| sql.count(condition), |most| sql.count_up_to(condition, most));
            let total = c.row(count).await?.map(|row| row.int()).transpose()?.unwrap_or_default();
            let rows = c.rows(sql.select(&columns, condition, &order, index(reach))).await?;
            let key = |row: &Row| {
                let mut c = row.columns();
                let id = sql.read_id(&mut c)?;
                let start = c.opt_int()?;
                Ok((start.is_none(), start.unwrap_or_default(), id))
            };
            Ok((total.unsigned_abs(), rows.iter().map(key).collect::<sqlx::Result<_>>()?))
        })
    }

    /// These rows, whole.
    async fn records(&self, catalogue: &Catalogue, ids: &[RowId]) -> Result<Vec<(RowId, Map<String, Json>)>> {
        let Inner { sql, db, .. } = &*self.0;
        let shapes = Shapes::of(catalogue, sql.dialect);
        let doing = format!("reading rows of {}", self.table_name());
        let (id, columns) = (sql.id_text(), shapes.select(sql));
        let select = format!("SELECT {id}, {columns} FROM {} WHERE {}", sql.table, sql.id_in(ids.len()));
        let rows = retrying!(db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let rows = c.rows(query(select.clone()).bind_all(ids.iter().map(|id| sql.id_of(id)))).await?;
            let read = |row: &Row| Ok((sql.read_id(&mut row.columns())?, shapes.read(row, 1)?));
            rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()
        })?;
        Ok(rows.into_iter().map(|(id, row)| (id, self.record(row))).collect())
    }

    fn record(&self, mut row: Map<String, Json>) -> Map<String, Json> {
        row.insert("table".into(), self.table_name().into());
        row.insert("serviceName".into(), self.service_name().into());
        row.insert("manualSuccessRoute".into(), self.0.handler.manual_success_route().into());
        row
    }
}
