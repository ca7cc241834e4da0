//! Events that cannot be published now: what is kept of them in the database, and the keys whose
//! later rows wait behind them.

pub mod clerk;
pub mod copies;
pub mod copy;
pub mod guard;
pub mod held;
pub mod letter;
pub mod store;
