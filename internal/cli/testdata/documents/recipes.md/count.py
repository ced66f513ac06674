import json
import pathlib
import sys


def count(directory):
    return {path.name: len(path.read_text().split()) for path in pathlib.Path(directory).iterdir()}


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1])))
