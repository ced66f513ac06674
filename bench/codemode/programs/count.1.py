print(tools.sql.search_objects(object_type="column", schema="main", table="products"))
