pub mod quote;
pub mod schema;
pub mod slot;
pub mod verdict;
