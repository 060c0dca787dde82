"""Programs that float64 cannot finish, in numbers of twice the precision: route.py.

central_path.py is a path that knows no norm, balls.py has balls that know no path; pool.py makes doubled rows
and rounds their solution to float64.
"""
