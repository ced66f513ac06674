import csv

with open("data.csv") as f:
    total = sum(int(row["n"]) for row in csv.DictReader(f))
with open("result.csv", "w") as f:
    f.write("total\n%d\n" % total)
